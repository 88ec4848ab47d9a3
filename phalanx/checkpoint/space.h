#pragma once

#include <cstdint>
#include <string>

#include "phalanx/checkpoint/storage.h"

namespace phalanx {

/// Error(checkpoint) if the disk of `storage` has less than `wanted` bytes free, to save `what`.
void require_space(const Storage& storage, int64_t wanted, const std::string& what);

/// Where there is too little space, deletes what would go after the first save anyway, if that is
/// enough. A save that then fails leaves only what is kept: so the newest is read first, and must
/// be whole. `keep` 0: deletes nothing. `spared`: path of a checkpoint that is left, if it is one
/// of them.
void make_space(Storage& storage, int64_t wanted, int keep, int64_t keep_every,
                const std::string& spared);

}  // namespace phalanx
