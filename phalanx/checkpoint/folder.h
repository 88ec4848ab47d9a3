#pragma once

#include <string>
#include <vector>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

// The folder that holds a run's checkpoints, as one rank sees it. Folders whose names begin with
// ".tmp-" are unfinished or being deleted.

struct Candidate {
  std::string path;
  int64_t created;     ///< 0 if broken
  std::string defect;  ///< why it cannot be used; empty if it can
};

/// Every step-N of `folder`, the newest first, the broken ones last. Reads manifests and sizes.
std::vector<Candidate> candidates(const std::string& folder);

/// Makes folder/step-N of the finished `aside`, whether or not there was one; then `latest`.
/// Returns its path.
std::string publish(const std::string& folder, const std::string& aside, int64_t step);

/// Deletes all but the newest `keep` complete checkpoints. Never throws: what cannot be deleted is
/// a warning.
void delete_old(const std::string& folder, int keep);

/// Removes what killed saves left.
void remove_unfinished(const std::string& folder);

}  // namespace phalanx
