#pragma once

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/lock.h"
#include "phalanx/checkpoint/saver.h"

namespace phalanx {

/// The newest complete checkpoint of `folder` and, if all ranks see it there, of what `local` ("":
/// none) has of that folder; nothing if there are no checkpoints. Broken ones are skipped with a
/// warning; Error(checkpoint) if only broken ones are left. Collective.
std::optional<std::string> newest_checkpoint(Communicator& world, const std::string& folder,
                                             const std::string& local,
                                             const LoadOptions& options = {});

/// A run's folder of checkpoints, for as long as the run saves there.
///
///     Checkpointer checkpointer(world, "run/checkpoints", {.keep = 2, .async = true});
///     ... load newest_checkpoint(), which nobody else replaces any more ...
///     while (step < steps) {
///       ... one step ...
///       checkpointer.poll();
///       if (step % 100 == 0) checkpointer.save({.step = step}, entries);
///     }
///     checkpointer.finish();
///
/// Every function is a collective. An error on one rank is the same Error on all, from the same
/// call, and names the rank; saving can go on after it.
class Checkpointer {
 public:
  /// Makes the folder, keeps other runs out of it (lock.h; not in an object store), removes what
  /// killed saves left, and checks that every rank can write. Before the run decides what it goes
  /// on from.
  Checkpointer(Communicator& world, const std::string& folder, SaveOptions options = {});
  /// Finishes, unless an exception is on its way.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  void operator=(const Checkpointer&) = delete;

  /// Warns of checkpoints ahead of `step`, where the run stands: they are of another run then.
  void warn_of_later(int64_t step);

  /// What the first save would do at a worse time: plan, buffers, comparison of bytes wanted and
  /// free. Optional. `resumed`: path of the checkpoint that the run goes on from, "" if none: it is
  /// not deleted to make space.
  void prepare(std::span<const StateEntry> entries, const std::string& resumed = "") {
    saver_.prepare(entries, resumed);
  }

  /// Saves `entries` as folder/step-N (N = run.step); asynchronous: returns when they are copied,
  /// and waits first for the save before. The checkpoint appears whole or not at all; then
  /// folder/latest names it; then old ones are deleted. An older step-N is replaced.
  void save(const RunState& run, std::span<const StateEntry> entries);

  /// Once a step: moves the save in flight on, and throws if it failed. Costs nothing if there is
  /// none, and never waits for a disk, or after an error 10 s.
  void poll() { saver_.advance(); }

  /// Waits for the save in flight, and its copy: before the program ends or loads.
  void finish() { saver_.finish(); }

  bool in_flight() const { return saver_.in_flight(); }
  /// Path of the last checkpoint that this object published; "" if none.
  const std::string& newest() const { return saver_.newest(); }

 private:
  Communicator& world_;
  const std::string folder_;
  const bool async_;
  FolderLock lock_, local_lock_;  // rank 0
  Saver saver_;
};

}  // namespace phalanx
