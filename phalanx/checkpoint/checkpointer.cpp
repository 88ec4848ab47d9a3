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

// Every host has one; ranks of a host may get in each other's way.
void prepare_local(Communicator& world, const std::string& local) {
  const auto remove = [&] {
    try {
      remove_unfinished(*open_storage(local));
    } catch (const Error&) {  // another rank of this host removes it
    }
    return std::string();
  };
  agree(world, "local folder", remove, disk_deadline);
  prepare_checkpoints(world, local, false);
}

// The newest complete one; `created` is 0 if there is none.
Candidate newest_of(const std::vector<Candidate>& found) {
  for (const auto& candidate : found)
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
  const std::string place = local_place(local, folder);
  std::string alone;  // rank 0: what the folder itself has, if not one that can be used
  const auto find = [&]() -> std::string {
    const auto found = candidates(*open_storage(folder));
    const Candidate here = newest_of(candidates(*open_storage(place))), there = newest_of(found);
    if (found.empty()) alone = " holds no checkpoint";
    if (!found.empty() && there.created == 0)
      alone = text(" holds only broken ones (", join(defects_of(found), "; "), ")");
    return here.created > 0 && here.created >= there.created ? here.name : "";
  };
  const std::string found = agree_with_first(world, "newest", find, disk_deadline);
  // Ranks of other hosts have other local folders.
  const auto storage = open_storage(place);
  const auto look = [&]() -> std::string {
    if (found.empty() || storage->list(found).empty()) return "";
    return read_text(*storage, in_folder(found, "manifest.json.xxh128"));
  };
  const auto seen = agree(world, "newest", look, disk_deadline);
  const std::string path = storage->path(found);
  const bool all = std::all_of(seen.begin(), seen.end(),
                               [&](const auto& hash) { return !hash.empty() && hash == seen[0]; });
  if (!all || !intact(world, place, path, options))
    return newest_checkpoint(world, folder, options);
  if (!alone.empty())
    log_warning(text(path, " is used, and ", folder, alone, "; to start anew remove ", place,
                     " too, or set train.resume = \"never\""));
  return path;
}

Checkpointer::Checkpointer(Communicator& world, const std::string& folder, SaveOptions options)
    : world_(world),
      folder_(folder),
      async_(options.async),
      lock_(lock_folder(world, folder)),
      local_lock_(lock_folder(world, local_place(options.local, folder))),
      saver_(world, folder, options) {
  prepare_checkpoints(world, folder);
  if (!options.local.empty()) prepare_local(world, local_place(options.local, folder));
}

void Checkpointer::warn_of_later(int64_t step) {
  const auto warn = [&] {
    std::vector<std::string> ahead;
    for (const auto& candidate : candidates(*open_storage(folder_)))
      if (candidate.defect.empty() && step_of(candidate.name).value_or(0) > step)
        ahead.push_back(candidate.name);
    if (!ahead.empty())
      log_warning(text(folder_, " holds ", join(ahead),
                       " of another run or of later steps, this run is at step ", step,
                       "; the newest by time of creation are kept, whatever their steps"));
    return std::string();
  };
  agree_with_first(world_, "folder", warn, disk_deadline);
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
