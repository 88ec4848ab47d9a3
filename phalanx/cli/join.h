#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/comm/world.h"
#include "phalanx/config/check.h"

namespace phalanx::cli {

/// This process as a rank of a run: what train, eval and verify do first.
struct Rank {
  WorldInfo info;
  int threads = 1;
  std::shared_ptr<World> world;
};

/// Takes the threads of this rank ([train] threads, else OMP_NUM_THREADS, else cores over the ranks
/// of this host), keeps freed memory, and meets the other ranks. The config is checked first.
Rank join(const Config& config, ConfigUse use = ConfigUse::training);

/// Throws with all that forbids a run of this config on `ranks` ranks; false if there is none.
bool check_config(const std::optional<Config>& config, int ranks,
                  ConfigUse use = ConfigUse::training);

/// Threads that a rank of this config has.
int rank_threads(const Config& config, const WorldInfo& info);

WorldOptions world_options(const Config& config);

}  // namespace phalanx::cli
