#pragma once

#include <memory>
#include <string>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// What is kept from one read_parts() of a folder to the next: the last file, and the buffer.
struct ReadCache {
  std::string name;
  std::unique_ptr<Reader> file;
  at::Tensor staging;
};

/// Fills every part of `wanted` from the files of `folder`, through a buffer of 8 MB at most; reads
/// at most 5 % more bytes than are needed, or 512 bytes where a run is shorter. `saved` is the
/// manifest's entry of that name, role and shape. Floating-point types are converted to the
/// wanted one, others must be equal.
struct ReadJob {
  const StateEntry* wanted;
  const ManifestEntry* saved;
};
void read_parts(const Storage& storage, const std::string& folder, const std::vector<ReadJob>& jobs,
                ReadCache* cache = nullptr);

/// Whether elements of one type can be loaded as the other.
bool convertible(Dtype from, Dtype to);

}  // namespace phalanx
