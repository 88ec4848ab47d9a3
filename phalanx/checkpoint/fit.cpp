#include "phalanx/checkpoint/fit.h"

#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

using nlohmann::json;

bool matches_any(const std::vector<std::string>& patterns, const TensorKey& key) {
  const std::string label = tensor_label(key.first, key.second);
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), label.c_str(), 0) == 0;
  });
}

// The keys of `from` that `in` lacks: those that a pattern allows, and the others.
struct Absent {
  std::set<TensorKey> allowed, other;
};

Absent absent(const Signatures& from, const Signatures& in,
              const std::vector<std::string>& patterns) {
  Absent found;
  for (const auto& [key, signature] : from)
    if (!in.contains(key)) (matches_any(patterns, key) ? found.allowed : found.other).insert(key);
  return found;
}

// "exp_avg of a, b"; a role that is absent as a whole is named once.
std::string list(const std::set<TensorKey>& keys, const Signatures& from) {
  std::map<std::string, std::vector<std::string>> by_role;
  std::map<std::string, size_t> total;
  for (const auto& [key, signature] : from) ++total[key.second];
  for (const auto& [name, role] : keys) by_role[role].push_back(name);
  std::vector<std::string> lists;
  for (const auto& [role, names] : by_role)
    if (names.size() == total[role] && names.size() > 1)
      lists.push_back(text("every ", role, " (", names.size(), " tensors)"));
    else
      lists.push_back(text(role, " of ", join(names)));
  return join(lists, "; ");
}

}  // namespace

Signatures wanted_by_all(const std::vector<std::string>& descriptions) {
  Signatures wanted;
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    const json entries = json::from_cbor(descriptions[rank]);
    for (const auto& entry : entries) {
      const Signature signature{static_cast<Dtype>(entry[2].get<int>()),
                                entry[3].get<std::vector<int64_t>>()};
      const auto [place, fresh] =
          wanted.insert({{entry[0].get<std::string>(), entry[1].get<std::string>()}, signature});
      require(place->second == signature, ExitCode::checkpoint, "the ranks want different ",
              place->first.first, " (", place->first.second, "): one of them ",
              shape_string(place->second.shape), ", rank ", rank, " ",
              shape_string(signature.shape), " of ", name(signature.dtype));
    }
  }
  return wanted;
}

std::map<TensorKey, const ManifestEntry*> saved_tensors(const Manifest& manifest,
                                                        std::set<std::string> buffers) {
  for (const auto& entry : manifest.entries)
    if (entry.role == "buffer") buffers.erase(entry.name);
  std::map<TensorKey, const ManifestEntry*> tensors;
  for (const auto& entry : manifest.entries) {
    const bool buffer = entry.role == "parameter" && buffers.contains(entry.name);
    tensors[{entry.name, buffer ? "buffer" : entry.role}] = &entry;
  }
  return tensors;
}

Fit compare(const Signatures& saved, const Signatures& wanted, const LoadOptions& options) {
  std::vector<std::string> shapes, found;
  std::map<std::string, std::vector<std::string>> types;  // what differs, and in which tensors
  std::map<std::string, int64_t> converted;
  for (const auto& [key, want] : wanted) {
    const auto place = saved.find(key);
    if (place == saved.end()) continue;
    const Signature& have = place->second;
    if (have.shape != want.shape)
      shapes.push_back(text(key.first, " (", key.second, ") is ", shape_string(have.shape),
                            ", wanted ", shape_string(want.shape)));
    if (have.dtype == want.dtype) continue;
    if (convertible(have.dtype, want.dtype))
      ++converted[text(key.second, " from ", name(have.dtype), " to ", name(want.dtype))];
    else
      types[text(key.second, " is ", name(have.dtype), ", wanted ", name(want.dtype))].push_back(
          key.first);
  }
  const Absent missing = absent(wanted, saved, options.allow_missing),
               unexpected = absent(saved, wanted, options.allow_unexpected);
  if (!missing.other.empty()) found.push_back("it lacks " + list(missing.other, wanted));
  if (!unexpected.other.empty())
    found.push_back("nobody asked for " + list(unexpected.other, saved));
  if (!shapes.empty()) found.push_back("other shapes: " + join(shapes));
  for (const auto& [difference, names] : types)
    found.push_back(text(difference, ", of ", join(names)));

  Fit fit{join(found, "; "), missing.allowed, {}};
  if (!missing.allowed.empty())
    fit.notes.push_back(text("it lacks ", list(missing.allowed, wanted),
                             ", which keep their values (allow_missing)"));
  if (!unexpected.allowed.empty())
    fit.notes.push_back(
        text(list(unexpected.allowed, saved), " is passed over (allow_unexpected)"));
  for (const auto& [conversion, tensors] : converted)
    fit.notes.push_back(
        text(conversion, " is converted (", tensors, tensors == 1 ? " tensor)" : " tensors)"));
  return fit;
}

}  // namespace phalanx
