#pragma once

#include <vector>

#include "phalanx/config/config.h"

namespace phalanx {

/// Every rule that this config breaks on `world_size` ranks, all at once, before any process group
/// is built; empty if it can run.
std::vector<Violation> check(const Config& config, int world_size);

/// The config with what depends on the number of ranks filled in: parallel.degree.dp_shard,
/// batch.micro, lr.decay_steps. Throws Error(usage) with all of check()'s sentences, one per line.
Config resolve(Config config, int world_size);

/// Microbatches per optimizer step on each rank, of a resolved config.
int64_t accumulation(const Config& config);

}  // namespace phalanx
