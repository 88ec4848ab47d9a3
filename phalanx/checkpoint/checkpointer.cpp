#include "phalanx/checkpoint/checkpointer.h"

#include <algorithm>
#include <exception>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"

namespace phalanx {
namespace {

FolderLock lock_folder(Communicator& world, const std::string& folder) {
  FolderLock held;
  agree(world, "lock", [&] {
    if (world.rank() == 0 && !folder.empty()) held = lock_place(folder);
    return std::string();
  });
  return held;
}

void warn_of_others(const std::string& folder, int64_t step) {
  const auto storage = open_storage(folder);
  std::vector<std::string> ahead;
  for (const auto& candidate : candidates(*storage))
    if (step_of(candidate.name).value_or(0) > step) ahead.push_back(candidate.name);
  if (!ahead.empty())
    log_warning(text(folder, " holds ", join(ahead),
                     " of another run or of later steps, this run is at step ", step,
                     "; the newest by time of creation are kept, whatever their steps"));
}

// Every host has one; ranks of a host may get in each other's way.
void prepare_local(Communicator& world, const std::string& local) {
  agree(world, "folder", [&] {
    try {
      remove_unfinished(*open_storage(local));
    } catch (const Error&) {  // another rank of this host removes it
    }
    return std::string();
  });
  prepare_checkpoints(world, local, false);
}

// A place's newest complete checkpoint; `created` is 0 if it has none.
Candidate newest_in(const std::string& where) {
  for (auto& candidate : candidates(*open_storage(where)))
    if (candidate.defect.empty()) return candidate;
  return {};
}

// Whether `path`, the newest of `folder`, is that by its contents too, if they are to be verified.
bool intact(Communicator& world, const std::string& folder, const std::string& path,
            const LoadOptions& options) {
  if (!options.verify_hashes) return true;
  try {
    return newest_checkpoint(world, folder, options) == path;
  } catch (const Error& error) {
    if (world.rank() == 0) log_warning(error.what());
    return false;
  }
}

}  // namespace

std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder,
                                             const std::string& local, const LoadOptions& options) {
  if (local.empty()) return newest_checkpoint(world, folder, options);
  const auto told = agree(world, "newest", [&]() -> std::string {
    if (world.rank() != 0) return "";
    const Candidate here = newest_in(local);
    return here.created > 0 && here.created >= newest_in(folder).created ? here.name : "";
  });
  // Ranks of other hosts have other local folders.
  const auto storage = open_storage(local);
  const auto seen = agree(world, "newest", [&]() -> std::string {
    if (told[0].empty() || storage->list(told[0]).empty()) return "";
    return read_text(*storage, in_folder(told[0], "manifest.json.xxh128"));
  });
  const bool all = std::all_of(seen.begin(), seen.end(),
                               [&](const auto& hash) { return !hash.empty() && hash == seen[0]; });
  return all && intact(world, local, storage->path(told[0]), options)
             ? storage->path(told[0])
             : newest_checkpoint(world, folder, options);
}

Checkpointer::Checkpointer(Communicator& world, const std::string& folder, SaveOptions options,
                           int64_t step)
    : async_(options.async),
      lock_(lock_folder(world, folder)),
      local_lock_(lock_folder(world, options.local)),
      saver_(world, folder, options) {
  prepare_checkpoints(world, folder);
  if (!options.local.empty()) prepare_local(world, options.local);
  agree(world, "folder", [&] {
    if (world.rank() == 0) warn_of_others(folder, step);
    return std::string();
  });
}

Checkpointer::~Checkpointer() {
  if (std::uncaught_exceptions() > 0) return;
  try {
    finish();
  } catch (const std::exception& error) {
    log_warning(text("the last checkpoint was not saved: ", error.what()));
  }
}

void Checkpointer::save(const RunState& run, std::span<const StateEntry> entries) {
  saver_.begin(run, entries);
  if (!async_) saver_.await_published();
}

}  // namespace phalanx
