#pragma once

#include <cstdint>

namespace phalanx {

/// Where sample `index` of epoch `epoch` lies in a data set of `count` samples: a permutation of
/// [0, count) that depends on nothing but (seed, epoch), computed without a table by a Feistel
/// network with cycle walking (Black and Rogaway 2002). Every epoch has another one.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t index, int64_t count);

/// The sample of a data set that a run consumes as its `consumed`-th, counted from 0 over all
/// epochs. Epochs follow each other without a gap.
inline int64_t sample_at(uint64_t seed, int64_t consumed, int64_t count) {
  return shuffled(seed, consumed / count, consumed % count, count);
}

}  // namespace phalanx
