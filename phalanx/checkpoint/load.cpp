#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/fit.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

std::unique_ptr<Storage> open_by_all(Communicator& world, const std::string& path) {
  std::unique_ptr<Storage> storage;
  agree(world, "open", [&] {
    storage = open_storage(path);
    return std::string();
  });
  return storage;
}

// What is wrong with the contents of a checkpoint, each rank reading a share; the same on all.
std::string damage(Communicator& world, const Storage& storage, const std::string& folder,
                   const Manifest& manifest) {
  auto told = agree(world, "verify", [&] {
    return join(content_defects(storage, folder, manifest, world.rank(), world.size()), "; ");
  });
  std::erase(told, "");
  return join(told, "; ");
}

// The manifest as rank 0 reads it, on all ranks.
Manifest read_by_one(Communicator& world, const Storage& storage, const std::string& folder) {
  const std::string path = storage.path(in_folder(folder, "manifest.json"));
  const auto texts = agree(world, "manifest", [&] {
    if (world.rank() != 0) return std::string();
    std::string json_text = read_manifest_text(storage, folder);
    const auto defects = size_defects(storage, folder, parse_manifest(json_text, path));
    require(defects.empty(), ExitCode::checkpoint, join(defects, "; "));
    return json_text;
  });
  return parse_manifest(texts[0], path);
}

// One line per candidate: its name, and after a space what is wrong with it.
std::vector<Candidate> candidates_of_one(Communicator& world, const Storage& storage) {
  const auto told = agree(world, "candidates", [&] {
    std::string lines;
    if (world.rank() == 0)
      for (const Candidate& candidate : candidates(storage)) {
        std::string defect = candidate.defect;
        std::replace(defect.begin(), defect.end(), '\n', ' ');
        lines += candidate.name + " " + defect + "\n";
      }
    return lines;
  });
  std::vector<Candidate> found;
  std::istringstream lines(told[0]);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    found.push_back({line.substr(0, space), 0, line.substr(space + 1)});
  }
  return found;
}

void expect_file_of_rank_zero(const Storage& storage, const std::string& name) {
  try {
    storage.open(name);
  } catch (const Error& error) {
    fail(ExitCode::checkpoint, storage.path(""), " does not show what rank 0 writes (",
         error.what(), "); all ranks need one folder that they share");
  }
}

}  // namespace

RunState load_checkpoint(Communicator& world, const std::string& path,
                         std::span<const StateEntry> entries, const LoadOptions& options) {
  const auto storage = open_by_all(world, path);
  const Manifest manifest = read_by_one(world, *storage, "");
  if (options.verify_hashes) {
    const std::string damaged = damage(world, *storage, "", manifest);
    require(damaged.empty(), ExitCode::checkpoint, damaged);
  }
  load_entries(world, *storage, "", manifest, entries, options);
  return manifest.run;
}

void load_entries(Communicator& world, const Storage& storage, const std::string& folder,
                  const Manifest& manifest, std::span<const StateEntry> entries,
                  const LoadOptions& options) {
  const auto chosen = [&](const std::string& role) {
    return options.roles.empty() || options.roles.contains(role);
  };
  std::vector<StateEntry> mine;
  for (const auto& entry : entries)
    if (chosen(entry.role)) mine.push_back(entry);
  const auto descriptions = agree(world, "wanted", [&] { return describe_entries(mine); });
  Signatures saved;
  std::map<TensorKey, const ManifestEntry*> by_key;
  for (const auto& entry : manifest.entries) {
    if (!chosen(entry.role)) continue;
    saved[{entry.name, entry.role}] = {entry.dtype, entry.shape};
    by_key[{entry.name, entry.role}] = &entry;
  }
  const Fit fit = compare(saved, wanted_by_all(descriptions), options);
  const std::string path = storage.path(folder);
  // Told to all, since each rank has its own options.
  const auto misfits = agree(world, "fit", [&] { return fit.misfit; });
  const bool same = std::all_of(misfits.begin(), misfits.end(),
                                [&](const auto& misfit) { return misfit == misfits[0]; });
  for (size_t rank = 0; rank < misfits.size(); ++rank)
    require(misfits[rank].empty(), ExitCode::checkpoint, same ? "" : text("rank ", rank, ": "),
            "checkpoint ", path, " does not fit this run: ", misfits[rank],
            " (`phalanx ckpt inspect ", path,
            "` lists what it has; allow_missing and allow_unexpected of [checkpoint] let tensors "
            "differ)");
  if (world.rank() == 0 && !fit.notes.empty())
    log_info(text("loading ", path, ": ", join(fit.notes, "; ")));

  agree(world, "read", [&] {
    std::vector<ReadJob> jobs;
    for (const auto& entry : mine)
      if (!fit.kept.contains({entry.name, entry.role}))
        jobs.push_back({&entry, by_key.at({entry.name, entry.role})});
    read_parts(storage, folder, jobs);
    return std::string();
  });
}

void prepare_checkpoints(Communicator& world, const std::string& folder, bool shared) {
  const auto storage = open_by_all(world, folder);
  const auto told = agree(world, "folder", [&] {
    if (world.rank() != 0) return std::string();
    remove_unfinished(*storage);
    const std::string name = text(".tmp-probe-", std::hex, std::random_device{}());
    storage->create(name)->finish();
    return name;
  });
  const std::string& probe = told[0];
  const std::string own = text(probe, "-", world.rank());
  const auto check = [&] {
    storage->create(own)->finish();
    storage->remove(own);
    if (shared) expect_file_of_rank_zero(*storage, probe);
    return std::string();
  };
  try {
    agree(world, "folder", check);
  } catch (...) {
    if (world.rank() == 0) storage->remove(probe);
    throw;
  }
  if (world.rank() == 0) storage->remove(probe);
}

std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder,
                                             const LoadOptions& options) {
  const auto storage = open_by_all(world, folder);
  auto found = candidates_of_one(world, *storage);
  for (Candidate& candidate : found) {
    if (!candidate.defect.empty()) continue;
    if (options.verify_hashes)
      candidate.defect =
          damage(world, *storage, candidate.name, read_by_one(world, *storage, candidate.name));
    if (candidate.defect.empty()) break;
  }
  const auto newest = choose(*storage, found, world.rank() == 0);
  if (!newest) return std::nullopt;
  return storage->path(*newest);
}

}  // namespace phalanx
