#include <bit>
#include <iomanip>
#include <limits>

#include "phalanx/checkpoint/pickle_machine.h"

namespace phalanx {

// Beside 32 times the input's length: metadata of checkpoints take about 5 times.
constexpr int64_t most_handed_out = 16 << 20;

class PickleReader : private PickleMachine {
 public:
  PickleReader(std::string_view in, Pickle& out) : PickleMachine(in, out) {}

  void read() {
    require(take(1) == "\x80", "it does not begin with the PROTO instruction: no pickle");
    const int protocol = byte();
    require(protocol >= 2 && protocol <= 5, "it has protocol ", protocol, ", known are 2 to 5");
    while (step()) {
    }
  }

 private:
  bool step() {
    const int instruction = byte();
    if (constant(instruction) || container(instruction) || reference(instruction)) return true;
    if (instruction == '.') {
      end();
      return false;
    }
    fail(ExitCode::checkpoint, out_.label(), " cannot be read at byte ", at_ - 1,
         ": instruction 0x", std::hex, instruction, " is none of those that data needs");
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
};

Pickle::Pickle(std::string_view bytes, std::string label) : label_(std::move(label)) {
  budget_ = std::numeric_limits<int64_t>::max();
  PickleReader(bytes, *this).read();
  budget_ = most_handed_out + 32 * static_cast<int64_t>(bytes.size());
}

}  // namespace phalanx
