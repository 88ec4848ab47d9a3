#include <bit>
#include <cstring>
#include <iomanip>
#include <limits>
#include <unordered_map>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/pickle.h"

namespace phalanx {

// Every instruction makes at most one node and one reference, and every text is copied once, so
// memory is bounded by the input's length times a constant, and by these limits.
constexpr size_t most_nodes = 16'000'000;
constexpr size_t most_globals = 10'000;  // different ones
constexpr size_t longest_global = 256;
// Beside 32 times the input's length: metadata of checkpoints take about 5 times.
constexpr int64_t most_handed_out = 16 << 20;

class PickleReader {
 public:
  PickleReader(std::string_view in, Pickle& out) : in_(in), out_(out) {
    out_.nodes_.emplace_back();  // node 0 is none
  }

  void read() {
    require(take(1) == "\x80", "it does not begin with the PROTO instruction: no pickle");
    const int protocol = byte();
    require(protocol >= 2 && protocol <= 5, "it has protocol ", protocol, ", known are 2 to 5");
    while (step()) {
    }
  }

 private:
  using Ref = Pickle::Ref;
  using Kind = Pickle::Kind;
  using Refs = std::vector<Ref>;

  template <class... Parts>
  void require(bool condition, const Parts&... parts) {
    if (!condition) [[unlikely]]
      fail(ExitCode::checkpoint, out_.label_, " cannot be read at byte ", at_, ": ", parts...);
  }

  std::string_view take(uint64_t bytes) {
    require(bytes <= in_.size() - at_, "it is cut: ", bytes, " bytes are needed, ",
            in_.size() - at_, " are left");
    const auto taken = in_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  int byte() { return static_cast<uint8_t>(take(1)[0]); }
  uint64_t number(int bytes) {
    uint64_t value = 0;
    std::memcpy(&value, take(bytes).data(), bytes);
    return value;
  }
  std::string_view line() {
    const size_t end = in_.substr(at_, longest_global + 1).find('\n');
    require(end != std::string_view::npos, "a name without end");
    const auto found = take(end);
    at_ += 1;
    return found;
  }

  // The values since the last mark; values before it are out of reach.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(Ref ref) { stack_.push_back(ref); }
  Ref pop() {
    require(stack_.size() > floor(), "it takes a value where there is none");
    const Ref ref = stack_.back();
    stack_.pop_back();
    return ref;
  }
  Ref top() {
    require(stack_.size() > floor(), "it uses a value where there is none");
    return stack_.back();
  }
  Refs pop_mark() {
    require(!marks_.empty(), "a mark is missing");
    Refs values(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return values;
  }
  Refs pop_several(int count) {
    Refs values(count);
    while (count > 0) values[--count] = pop();
    return values;
  }

  template <class Value>
  void make(Kind kind, Value value) {
    require(out_.nodes_.size() < most_nodes, "it has more than ", most_nodes, " values");
    out_.nodes_.push_back({kind, std::move(value)});
    push(static_cast<Ref>(out_.nodes_.size() - 1));
  }
  void make_text(Kind kind, uint64_t bytes) { make(kind, std::string(take(bytes))); }

  void make_global(const std::string& module, const std::string& name) {
    require(module.size() + name.size() < longest_global, "a name of ", module.size() + name.size(),
            " characters");
    const std::string whole = module + "." + name;
    const auto known = globals_.find(whole);
    if (known != globals_.end()) return push(known->second);
    require(globals_.size() < most_globals, "it has more than ", most_globals, " different names");
    make(Kind::global, whole);
    globals_[whole] = stack_.back();
  }
  void make_stack_global() {
    const Ref name = pop(), module = pop();
    make_global(out_.text(module, "the name of a module"), out_.text(name, "a name"));
  }

  void make_object(Ref arguments, Ref callee) {
    make(Kind::object, Refs{callee, arguments, Ref{0}});
  }

  // Puts values into a container that is on the stack.
  void add(const Refs& values, Kind plain, bool paired) {
    require(!paired || values.size() % 2 == 0, "a key without a value");
    Pickle::Node& node = out_.nodes_[top()];
    require(node.kind == plain || node.kind == Kind::object, "it puts items into ",
            out_.describe(top()));
    auto& items = std::get<Refs>(node.value);
    items.insert(items.end(), values.begin(), values.end());
  }
  void build() {
    const Ref state = pop();
    Pickle::Node& node = out_.nodes_[top()];
    require(node.kind == Kind::object, "it gives a state to ", out_.describe(top()));
    Ref& place = std::get<Refs>(node.value)[2];
    require(place == 0, "it gives a state twice to ", out_.describe(top()));
    place = state;
  }

  void remember(uint64_t key) { memo_[key] = top(); }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    require(found != memo_.end(), "it recalls value ", key, ", which it never stored");
    push(found->second);
  }

  void long_integer(uint64_t bytes) {
    if (bytes > 8) return make_text(Kind::large_integer, bytes);
    const auto digits = take(bytes);
    const bool negative = bytes > 0 && static_cast<int8_t>(digits.back()) < 0;
    int64_t value = negative ? -1 : 0;
    std::memcpy(&value, digits.data(), bytes);
    make(Kind::integer, value);
  }

  bool step() {
    const int instruction = byte();
    if (constant(instruction) || container(instruction) || reference(instruction)) return true;
    if (instruction == '.') {
      out_.root_ = pop();
      require(stack_.empty() && marks_.empty(), "values are left over at its end");
      return false;
    }
    fail(ExitCode::checkpoint, out_.label_, " cannot be read at byte ", at_ - 1, ": instruction 0x",
         std::hex, instruction, " is none of those that data needs");
  }

  bool constant(int instruction) {
    switch (instruction) {
      case 'N':
        push(0);
        return true;
      case 0x88:  // NEWTRUE
        make(Kind::boolean, int64_t{1});
        return true;
      case 0x89:  // NEWFALSE
        make(Kind::boolean, int64_t{0});
        return true;
      case 'J':
        make(Kind::integer, int64_t{static_cast<int32_t>(number(4))});
        return true;
      case 'K':
        make(Kind::integer, static_cast<int64_t>(number(1)));
        return true;
      case 'M':
        make(Kind::integer, static_cast<int64_t>(number(2)));
        return true;
      case 0x8a:  // LONG1
        long_integer(number(1));
        return true;
      case 0x8b:  // LONG4
        long_integer(number(4));
        return true;
      case 'G':
        make(Kind::real, std::bit_cast<double>(__builtin_bswap64(number(8))));
        return true;
      case 0x8c:  // SHORT_BINUNICODE
        make_text(Kind::text, number(1));
        return true;
      case 'X':
        make_text(Kind::text, number(4));
        return true;
      case 0x8d:  // BINUNICODE8
        make_text(Kind::text, number(8));
        return true;
      case 'C':
      case 'U':
        make_text(Kind::bytes, number(1));
        return true;
      case 'B':
      case 'T':
        make_text(Kind::bytes, number(4));
        return true;
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        make_text(Kind::bytes, number(8));
        return true;
      default:
        return false;
    }
  }

  bool container(int instruction) {
    switch (instruction) {
      case ']':
        make(Kind::list, Refs());
        return true;
      case 'l':
        make(Kind::list, pop_mark());
        return true;
      case 'a':
        add({pop()}, Kind::list, false);
        return true;
      case 'e':
        add(pop_mark(), Kind::list, false);
        return true;
      case ')':
        make(Kind::tuple, Refs());
        return true;
      case 't':
        make(Kind::tuple, pop_mark());
        return true;
      case 0x85:  // TUPLE1 to TUPLE3
      case 0x86:
      case 0x87:
        make(Kind::tuple, pop_several(instruction - 0x84));
        return true;
      case '}':
        make(Kind::dict, Refs());
        return true;
      case 'd': {
        const Refs items = pop_mark();
        make(Kind::dict, Refs());
        add(items, Kind::dict, true);
        return true;
      }
      case 's':
        add(pop_several(2), Kind::dict, true);
        return true;
      case 'u':
        add(pop_mark(), Kind::dict, true);
        return true;
      case 0x8f:  // EMPTY_SET
        make(Kind::set, Refs());
        return true;
      case 0x90:  // ADDITEMS
        add(pop_mark(), Kind::set, false);
        return true;
      case 0x91:  // FROZENSET
        make(Kind::set, pop_mark());
        return true;
      default:
        return false;
    }
  }

  bool reference(int instruction) {
    switch (instruction) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        if (stack_.size() > floor() || marks_.empty())
          pop();
        else
          marks_.pop_back();
        return true;
      case '1':
        pop_mark();
        return true;
      case '2':
        push(top());
        return true;
      case 'q':
        remember(number(1));
        return true;
      case 'r':
        remember(number(4));
        return true;
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        return true;
      case 'h':
        recall(number(1));
        return true;
      case 'j':
        recall(number(4));
        return true;
      case 'c': {
        const std::string module(line());
        make_global(module, std::string(line()));
        return true;
      }
      case 0x93:  // STACK_GLOBAL
        make_stack_global();
        return true;
      case 'R':
      case 0x81: {  // NEWOBJ
        const Ref arguments = pop();
        make_object(arguments, pop());
        return true;
      }
      case 0x92: {  // NEWOBJ_EX: class, arguments, keyword arguments
        const Ref keywords = pop(), arguments = pop(), callee = pop();
        make(Kind::tuple, Refs{arguments, keywords});
        make_object(pop(), callee);
        return true;
      }
      case 'b':
        build();
        return true;
      case 'Q':
        make(Kind::persistent, Refs{pop()});
        return true;
      case 0x95:  // FRAME: a hint for readers of streams
        require(number(8) <= in_.size() - at_, "it is cut: a frame goes beyond its end");
        return true;
      default:
        return false;
    }
  }

  std::string_view in_;
  size_t at_ = 0;
  Pickle& out_;
  Refs stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Ref> memo_;
  std::unordered_map<std::string, Ref> globals_;
};

Pickle::Pickle(std::string_view bytes, std::string label) : label_(std::move(label)) {
  budget_ = std::numeric_limits<int64_t>::max();
  PickleReader(bytes, *this).read();
  budget_ = most_handed_out + 32 * static_cast<int64_t>(bytes.size());
}

}  // namespace phalanx
