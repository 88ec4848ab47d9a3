#include "phalanx/checkpoint/pickle.h"

#include "phalanx/base/error.h"

namespace phalanx {

void Pickle::refuse(Ref ref, std::string_view what) const {
  fail(ExitCode::checkpoint, label_, " holds ", describe(ref), " where ", what, " belongs");
}

void Pickle::spend(size_t bytes) const {
  budget_ -= static_cast<int64_t>(bytes);
  require(budget_ >= 0, ExitCode::checkpoint, label_,
          " refers to the same values again and again; it is not read any further");
}

const std::vector<Pickle::Ref>& Pickle::items(Ref ref) const {
  const auto& found = std::get<std::vector<Ref>>(nodes_[ref].value);
  spend(8 * found.size());
  return found;
}

int64_t Pickle::integer(Ref ref, std::string_view what) const {
  if (kind(ref) != Kind::integer && kind(ref) != Kind::boolean) refuse(ref, what);
  return std::get<int64_t>(nodes_[ref].value);
}

const std::string& Pickle::text(Ref ref, std::string_view what) const {
  if (kind(ref) != Kind::text) refuse(ref, what);
  const auto& found = std::get<std::string>(nodes_[ref].value);
  spend(found.size());
  return found;
}

const std::vector<Pickle::Ref>& Pickle::tuple(Ref ref, std::string_view what) const {
  if (kind(ref) != Kind::tuple) refuse(ref, what);
  return items(ref);
}

const std::vector<Pickle::Ref>& Pickle::list(Ref ref, std::string_view what) const {
  if (kind(ref) != Kind::list) refuse(ref, what);
  return items(ref);
}

std::vector<int64_t> Pickle::integers(Ref ref, std::string_view what) const {
  std::vector<int64_t> values;
  for (const Ref item : tuple(ref, what)) values.push_back(integer(item, what));
  return values;
}

std::vector<std::pair<Pickle::Ref, Pickle::Ref>> Pickle::pairs(Ref ref,
                                                               std::string_view what) const {
  if (kind(ref) != Kind::dict && kind(ref) != Kind::object) refuse(ref, what);
  const auto& all = items(ref);
  const size_t first = kind(ref) == Kind::dict ? 0 : 3;
  if ((all.size() - first) % 2 != 0) refuse(ref, what);
  std::vector<std::pair<Ref, Ref>> found;
  for (size_t i = first; i < all.size(); i += 2) found.emplace_back(all[i], all[i + 1]);
  return found;
}

std::string_view Pickle::global(Ref ref) const {
  if (kind(ref) != Kind::global) return "";
  return std::get<std::string>(nodes_[ref].value);
}

std::string_view Pickle::made_by(Ref ref) const {
  if (kind(ref) != Kind::object) return "";
  return global(std::get<std::vector<Ref>>(nodes_[ref].value)[0]);
}

Pickle::Ref Pickle::arguments(Ref object) const {
  return kind(object) == Kind::object ? std::get<std::vector<Ref>>(nodes_[object].value)[1] : 0;
}

Pickle::Ref Pickle::state(Ref object) const {
  return kind(object) == Kind::object ? std::get<std::vector<Ref>>(nodes_[object].value)[2] : 0;
}

Pickle::Ref Pickle::persistent_id(Ref ref) const {
  return kind(ref) == Kind::persistent ? std::get<std::vector<Ref>>(nodes_[ref].value)[0] : 0;
}

Pickle::Ref Pickle::field(Ref ref, std::string_view name) const {
  const Ref holder = kind(ref) == Kind::object ? state(ref) : ref;
  if (kind(holder) != Kind::dict) return 0;
  Ref found = 0;
  for (const auto& [key, value] : pairs(holder, "a dict"))
    if (kind(key) == Kind::text && text(key, "a key") == name) found = value;
  return found;
}

void Pickle::check_globals(const std::function<bool(std::string_view name)>& allowed) const {
  for (const Node& node : nodes_)
    if (node.kind == Kind::global) {
      const auto& name = std::get<std::string>(node.value);
      require(allowed(name), ExitCode::checkpoint, label_, " contains ", name,
              ", which is not data; nothing of it was run");
    }
}

std::string Pickle::describe(Ref ref) const {
  switch (kind(ref)) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "a bool";
    case Kind::integer:
    case Kind::large_integer:
      return "an int";
    case Kind::real:
      return "a float";
    case Kind::text:
      return "a str";
    case Kind::bytes:
      return "bytes";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::set:
      return "a set";
    case Kind::dict:
      return "a dict";
    case Kind::global:
      return phalanx::text("the name ", global(ref));
    case Kind::object:
      return phalanx::text("an object of ", made_by(ref).empty() ? "no known type" : made_by(ref));
    case Kind::persistent:
      return "a storage";
  }
  return "?";
}

void PickleWriter::put(uint64_t value, int bytes) {
  out_.append(reinterpret_cast<const char*>(&value), bytes);
}

void PickleWriter::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    out_ += 'K', put(value, 1);
  } else if (value == static_cast<int32_t>(value)) {
    out_ += 'J', put(value, 4);
  } else {
    out_ += "\x8a\x08", put(value, 8);
  }
}

void PickleWriter::integers(const std::vector<int64_t>& values) {
  mark();
  for (const int64_t value : values) integer(value);
  tuple();
}

// True if the value of that key was put on the stack from the memo; otherwise the caller puts it
// there, and may be asked for it again.
bool PickleWriter::remembered(const std::string& key) {
  const auto known = memo_.find(key);
  if (known == memo_.end()) return false;
  out_ += 'j', put(known->second, 4);
  return true;
}

void PickleWriter::text(std::string_view value) {
  const std::string key = phalanx::text("t", value);
  if (remembered(key)) return;
  out_ += 'X', put(value.size(), 4), out_ += value;
  out_ += 'r', put(memo_[key] = static_cast<uint32_t>(memo_.size()), 4);
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  const std::string key = phalanx::text("c", module, "\n", name, "\n");
  if (remembered(key)) return;
  out_ += key;
  out_ += 'r', put(memo_[key] = static_cast<uint32_t>(memo_.size()), 4);
}

}  // namespace phalanx
