#pragma once

#include <string>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// Fills every part of `wanted` from the files of `folder`, through a buffer of 8 MB at most; reads
/// at most 5 % more bytes than are needed, or 512 bytes where a run is shorter. `saved` is the
/// manifest's entry of that name, role and shape. Floating-point types are converted to the
/// wanted one, others must be equal.
struct ReadJob {
  const StateEntry* wanted;
  const ManifestEntry* saved;
};
void read_parts(const Storage& storage, const std::string& folder,
                const std::vector<ReadJob>& jobs);

/// Whether elements of one type can be loaded as the other.
bool convertible(Dtype from, Dtype to);

}  // namespace phalanx
