#pragma once

#include <cstring>
#include <unordered_map>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/pickle.h"

namespace phalanx {

/// What the instructions of a pickle work on: the input, the stack with its marks, the memo, and
/// the nodes that come to be. Every instruction makes at most one node and one reference, and every
/// text is copied once, so memory is bounded by the input's length times a constant, and by these
/// limits.
class PickleMachine {
 public:
  static constexpr size_t most_nodes = 16'000'000;
  static constexpr size_t most_globals = 10'000;  ///< different ones
  static constexpr size_t longest_global = 256;

 protected:
  PickleMachine(std::string_view in, Pickle& out) : in_(in), out_(out) {
    out_.nodes_.emplace_back();  // node 0 is none
  }

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
    const std::string whole_module = out_.text(module, "the name of a module");
    make_global(whole_module, out_.text(name, "a name"));
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

  // A value is stored once; a name that comes twice is one node, and may be stored twice.
  void remember(uint64_t key) {
    memo_[key] = top();
    require(memo_.size() <= out_.nodes_.size() + most_globals,
            "it stores more values than it holds");
  }
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

  // What is left is the tree.
  void end() {
    out_.root_ = pop();
    require(stack_.empty() && marks_.empty(), "values are left over at its end");
  }

  std::string_view in_;
  size_t at_ = 0;
  Pickle& out_;
  Refs stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Ref> memo_;
  std::unordered_map<std::string, Ref> globals_;
};

}  // namespace phalanx
