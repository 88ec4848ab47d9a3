#pragma once

#include <vector>

#include "phalanx/config/config.h"

namespace phalanx {

/// What a config is used for. An evaluation needs validation data, and neither training data nor
/// whole batches.
enum class ConfigUse { training, evaluation };

/// Every rule that this config breaks on `world_size` ranks, all at once, before any process group
/// is built; empty if it can run.
std::vector<Violation> check(const Config& config, int world_size,
                             ConfigUse use = ConfigUse::training);

/// The config with what depends on the number of ranks filled in: parallel.degree.dp_shard,
/// batch.micro, lr.decay_steps. Throws Error(usage) with all of check()'s sentences, one per line.
Config resolve(Config config, int world_size, ConfigUse use = ConfigUse::training);

/// Microbatches per optimizer step on each rank, of a resolved config.
int64_t accumulation(const Config& config);

}  // namespace phalanx
