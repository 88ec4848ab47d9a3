#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/checkpoint/storage.h"
#include "phalanx/checkpoint/task.h"

namespace phalanx {

// The place that holds a run's checkpoints, as one rank sees it.

struct Candidate {
  std::string name;    ///< in the storage: step-N
  int64_t created;     ///< 0 if broken
  std::string defect;  ///< why it cannot be used; empty if it can
};

/// Complete checkpoints that were read before, by name: when they were created. What is published
/// does not change, so who saves again and again in a place reads each of them once.
using KnownCheckpoints = std::map<std::string, int64_t>;

/// Every checkpoint, the newest first, the broken ones last. Reads manifests and sizes, but not
/// those that are `known`, which is brought up to date. A task that looks counts each of them in
/// `progress`, and stops when it is cancelled.
std::vector<Candidate> candidates(const Storage& storage, KnownCheckpoints* known = nullptr,
                                  TaskProgress* progress = nullptr);

/// "step-N: what is wrong with it" of the broken ones.
std::vector<std::string> defects_of(const std::vector<Candidate>& candidates);

/// The newest that is complete; none if there are no checkpoints. Broken ones are skipped, with a
/// warning if `warn`; Error(checkpoint) that says what is wrong with each if only broken ones are
/// left.
std::optional<std::string> choose(const Storage& storage, const std::vector<Candidate>& candidates,
                                  bool warn);
/// The same of all candidates(), with warnings.
std::optional<std::string> newest_candidate(const Storage& storage);

/// Now; later than every checkpoint in the place, even if the clock was set back.
int64_t creation_time(const Storage& storage, KnownCheckpoints* known = nullptr,
                      TaskProgress* progress = nullptr);
/// Now; later than `other`, the newest in a place. Error(checkpoint) if no manifest may say so.
int64_t creation_time_after(int64_t other);

/// Where the checkpoints of `folder` lie in `local`, a folder of this host that other runs may name
/// too: a subfolder that is named by a hash of the folder's absolute path or URL. "" if `local` is.
std::string local_place(const std::string& local, const std::string& folder);

/// Error(checkpoint) if `items`, which lie at `path` without a manifest.json, are what a save, a
/// copy or a removal left: the files of a checkpoint, which other tools would take for weights.
void refuse_unfinished(const std::string& path, const std::vector<Storage::Item>& items);

/// The checkpoint that `path` means: itself, or the newest of a place that holds some, or of a
/// run's folder. Error(checkpoint) if there is none.
std::string resolve_checkpoint(const std::string& path);

/// Makes the finished folder the checkpoint of `step`; then `latest`. Returns its name.
std::string publish(Storage& storage, const std::string& unfinished, int64_t step);

/// Makes `latest` say `name`, for people and scripts. Never throws: the checkpoint is complete, so
/// trouble is a warning.
void point_latest(Storage& storage, const std::string& name);

/// All but the newest `keep` complete checkpoints and, unless it is 0, those of every
/// `keep_every`-th step.
std::vector<std::string> old_checkpoints(const Storage& storage, int keep, int64_t keep_every,
                                         KnownCheckpoints* known = nullptr,
                                         TaskProgress* progress = nullptr);

/// Deletes old_checkpoints(). Never throws: what cannot be deleted is a warning.
void delete_old(Storage& storage, int keep, int64_t keep_every, KnownCheckpoints* known,
                TaskProgress& progress);

/// Removes what killed saves left.
void remove_unfinished(Storage& storage);

}  // namespace phalanx
