#include <map>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

using nlohmann::json;
using Key = std::pair<std::string, std::string>;  // name, role

struct Signature {
  Dtype dtype;
  std::vector<int64_t> shape;
  bool operator==(const Signature&) const = default;
};
using Signatures = std::map<Key, Signature>;

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

// "exp_avg of a, b"; a role that is absent as a whole is named once.
std::string list_absent(const Signatures& from, const Signatures& in) {
  std::map<std::string, std::vector<std::string>> absent;
  std::map<std::string, size_t> total;
  for (const auto& [key, signature] : from) {
    ++total[key.second];
    if (!in.contains(key)) absent[key.second].push_back(key.first);
  }
  std::vector<std::string> lists;
  for (const auto& [role, names] : absent)
    if (names.size() == total[role] && names.size() > 1)
      lists.push_back(text("every ", role, " (", names.size(), " tensors)"));
    else
      lists.push_back(text(role, " of ", join(names)));
  return join(lists, "; ");
}

// Everything in which the checkpoint is not what the ranks want; empty if nothing.
std::string misfit(const Signatures& saved, const Signatures& wanted) {
  std::vector<std::string> shapes, found;
  std::map<std::string, std::vector<std::string>> types;  // what differs, and in which tensors
  for (const auto& [key, want] : wanted) {
    const auto place = saved.find(key);
    if (place == saved.end()) continue;
    const Signature& have = place->second;
    if (have.shape != want.shape)
      shapes.push_back(text(key.first, " (", key.second, ") is ", shape_string(have.shape),
                            ", wanted ", shape_string(want.shape)));
    if (have.dtype != want.dtype)
      types[text(key.second, " is ", name(have.dtype), ", wanted ", name(want.dtype))].push_back(
          key.first);
  }
  const std::string missing = list_absent(wanted, saved), unexpected = list_absent(saved, wanted);
  if (!missing.empty()) found.push_back("it lacks " + missing);
  if (!unexpected.empty()) found.push_back("nobody asked for " + unexpected);
  if (!shapes.empty()) found.push_back("other shapes: " + join(shapes));
  for (const auto& [difference, names] : types)
    found.push_back(text(difference, ", of ", join(names)));
  return join(found, "; ");
}

void verify_content(Communicator& world, const Storage& storage, const Manifest& manifest) {
  agree(world, "verify", [&] {
    const auto defects = content_defects(storage, "", manifest, world.rank(), world.size());
    require(defects.empty(), ExitCode::checkpoint, join(defects, "; "));
    return std::string();
  });
}

}  // namespace

RunState load_checkpoint(Communicator& world, const std::string& path,
                         std::span<const StateEntry> entries, const LoadOptions& options) {
  const auto chosen = [&](const std::string& role) {
    return options.roles.empty() || options.roles.contains(role);
  };
  std::unique_ptr<Storage> storage;
  const auto texts = agree(world, "manifest", [&] {
    storage = open_storage(path);
    if (world.rank() != 0) return std::string();
    std::string json_text = read_manifest_text(*storage, "");
    const auto defects =
        size_defects(*storage, "", parse_manifest(json_text, storage->path("manifest.json")));
    require(defects.empty(), ExitCode::checkpoint, join(defects, "; "));
    return json_text;
  });
  const Manifest manifest = parse_manifest(texts[0], storage->path("manifest.json"));
  if (options.verify_hashes) verify_content(world, *storage, manifest);

  std::vector<StateEntry> mine;
  for (const auto& entry : entries)
    if (chosen(entry.role)) mine.push_back(entry);
  const auto descriptions = agree(world, "wanted", [&] { return describe_entries(mine); });
  Signatures saved;
  std::map<Key, const ManifestEntry*> by_key;
  for (const auto& entry : manifest.entries) {
    if (!chosen(entry.role)) continue;
    saved[{entry.name, entry.role}] = {entry.dtype, entry.shape};
    by_key[{entry.name, entry.role}] = &entry;
  }
  const std::string wrong = misfit(saved, wanted_by_all(descriptions));
  require(wrong.empty(), ExitCode::checkpoint, "checkpoint ", path,
          " does not fit this run: ", wrong, " (`phalanx ckpt inspect ", path,
          "` lists what it has)");

  agree(world, "read", [&] {
    std::vector<ReadJob> jobs;
    for (const auto& entry : mine) jobs.push_back({&entry, by_key.at({entry.name, entry.role})});
    read_parts(*storage, "", jobs);
    return std::string();
  });
  return manifest.run;
}

void prepare_checkpoints(Communicator& world, const std::string& folder) {
  agree(world, "folder", [&] {
    if (world.rank() == 0) remove_unfinished(*open_storage(folder));
    return std::string();
  });
  agree(world, "folder", [&] {
    const auto storage = open_storage(folder);
    const std::string probe = text(".tmp-probe-", world.rank());
    storage->create(probe)->finish();
    storage->remove(probe);
    return std::string();
  });
}

std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder) {
  const auto told = agree(world, "newest", [&] {
    if (world.rank() != 0) return std::string();
    const auto storage = open_storage(folder);
    const auto name = newest_candidate(*storage);
    return name ? storage->path(*name) : "";
  });
  if (told[0].empty()) return std::nullopt;
  return told[0];
}

}  // namespace phalanx
