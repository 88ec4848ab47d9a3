#pragma once

#include <string>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// Fills every part of `wanted` from the files of `folder`, reading little more than the bytes that
/// are needed. `saved` is the manifest's entry of that name, role, shape and dtype.
struct ReadJob {
  const StateEntry* wanted;
  const ManifestEntry* saved;
};
void read_parts(const Storage& storage, const std::string& folder,
                const std::vector<ReadJob>& jobs);

}  // namespace phalanx
