#include "phalanx/cli/join.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "phalanx/base/cores.h"
#include "phalanx/base/error.h"
#include "phalanx/config/check.h"
#include "phalanx/device/memory.h"

namespace phalanx::cli {

int rank_threads(const Config& config, const WorldInfo& info) {
  if (config.train.threads > 0) return static_cast<int>(config.train.threads);
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  int threads = 0;
  if (wanted && std::from_chars(wanted, wanted + std::strlen(wanted), threads).ec == std::errc() &&
      threads > 0)
    return threads;
  return std::max(1, available_cores() / std::max(1, info.local_size));
}

WorldOptions world_options(const Config& config) {
  WorldOptions options;
  if (config.train.transport == "shared_memory") options.transport = Transport::shared_memory;
  if (config.train.transport == "gloo") options.transport = Transport::gloo;
  const auto milliseconds = [](double seconds) {
    return std::chrono::milliseconds(std::llround(1e3 * seconds));
  };
  options.deadline = milliseconds(config.train.deadline_s);
  options.join_deadline = milliseconds(config.train.join_deadline_s);
  options.debug = config.train.debug;
  return options;
}

bool check_config(const std::optional<Config>& config, int ranks, ConfigUse use) {
  if (config) resolve(*config, ranks, use);
  return config.has_value();
}

Rank join(const Config& config, ConfigUse use) {
  Rank rank;
  rank.info = world_from_environment();
  resolve(config, rank.info.size, use);  // what is wrong with it, before anything is built
  count_memory();
  keep_freed_memory();
  rank.threads = rank_threads(config, rank.info);
  at::set_num_threads(rank.threads);
  rank.world = World::join(rank.info, world_options(config));
  return rank;
}

}  // namespace phalanx::cli
