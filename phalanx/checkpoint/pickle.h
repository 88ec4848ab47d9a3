#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace phalanx {

/// A Python pickle (protocols 2 to 5) as a tree of plain values. Nothing in it is ever called or
/// imported: a global is its name, a call (REDUCE, NEWOBJ) an object that remembers what would have
/// been called, with which arguments and which state. Objects that share values share nodes, and a
/// node may reach itself: whoever follows nodes bounds the depth. What is handed out in all is
/// bounded by the input's length, so that values that are shared a million times take neither
/// memory nor time without end.
class Pickle {
 public:
  using Ref = uint32_t;  ///< a node's number

  enum class Kind : uint8_t {
    none,
    boolean,
    integer,
    large_integer,  ///< of more than 64 bits: its bytes
    real,
    text,
    bytes,
    tuple,
    list,
    set,
    dict,        ///< key, value, key, value ...
    global,      ///< "module.name"
    object,      ///< what is called, its arguments, its state (or none); then items that were added
    persistent,  ///< an id that means something outside of the pickle
  };

  /// Reads `bytes` whole. `label` names it in messages. Error(checkpoint) with the byte at which
  /// it cannot be read: cut, an instruction of another protocol, more than limits allow.
  Pickle(std::string_view bytes, std::string label);

  Ref root() const { return root_; }
  Kind kind(Ref ref) const { return nodes_[ref].kind; }
  const std::string& label() const { return label_; }

  // What a node holds; Error(checkpoint) that says what it holds instead of `what`.
  int64_t integer(Ref ref, std::string_view what) const;  ///< of a boolean too
  const std::string& text(Ref ref, std::string_view what) const;
  const std::vector<Ref>& tuple(Ref ref, std::string_view what) const;
  std::vector<int64_t> integers(Ref ref, std::string_view what) const;           ///< of a tuple
  std::vector<std::pair<Ref, Ref>> pairs(Ref ref, std::string_view what) const;  ///< of a dict
  const std::vector<Ref>& list(Ref ref, std::string_view what) const;

  /// The name of a global; "" of anything else.
  std::string_view global(Ref ref) const;
  /// The name of what made an object; "" of anything else.
  std::string_view made_by(Ref ref) const;
  Ref arguments(Ref object) const;
  Ref state(Ref object) const;
  Ref persistent_id(Ref ref) const;
  /// An attribute of an object, or the value of a text key of a dict; a none node if there is none.
  Ref field(Ref ref, std::string_view name) const;

  /// Error(checkpoint) that names the first global that is not `allowed`, used or not.
  void check_globals(const std::function<bool(std::string_view name)>& allowed) const;

  /// What a node is, for messages: "a dict", "an object of torch.Size".
  std::string describe(Ref ref) const;

 private:
  friend class PickleMachine;
  struct Node {
    Kind kind = Kind::none;
    std::variant<std::monostate, int64_t, double, std::string, std::vector<Ref>> value;
  };
  [[noreturn]] void refuse(Ref ref, std::string_view what) const;
  const std::vector<Ref>& items(Ref ref) const;
  void spend(size_t bytes) const;

  std::string label_;
  std::vector<Node> nodes_;
  Ref root_ = 0;
  mutable int64_t budget_ = 0;  ///< bytes that may still be handed out
};

/// Writes a pickle of protocol 2, instruction by instruction. Globals and short texts that come
/// again are remembered.
class PickleWriter {
 public:
  void none() { out_ += 'N'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(int64_t value);
  void text(std::string_view value);
  void global(std::string_view module, std::string_view name);
  void mark() { out_ += '('; }
  void tuple() { out_ += 't'; }                       ///< of what follows the mark
  void integers(const std::vector<int64_t>& values);  ///< a tuple
  void empty_tuple() { out_ += ')'; }
  void tuple_of_one() { out_ += '\x85'; }
  void empty_dict() { out_ += '}'; }
  void set_items() { out_ += 'u'; }  ///< of the dict before the mark
  void empty_list() { out_ += ']'; }
  void append_items() { out_ += 'e'; }  ///< to the list before the mark
  void call() { out_ += 'R'; }          ///< a global with a tuple
  void make() { out_ += '\x81'; }       ///< an object of a class, with a tuple
  void build() { out_ += 'b'; }         ///< gives an object its state
  void persistent() { out_ += 'Q'; }
  std::string finish() { return std::move(out_ += '.'); }

 private:
  bool remembered(const std::string& key);
  void put(uint64_t value, int bytes);
  std::string out_ = std::string("\x80\x02", 2);
  std::map<std::string, uint32_t> memo_;
};

}  // namespace phalanx
