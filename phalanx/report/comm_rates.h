#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/comm/communicator.h"
#include "phalanx/comm/world.h"

namespace phalanx {

/// One collective of one size by one implementation: seconds per call, of the slowest rank.
struct CommRate {
  std::string operation;       ///< "all_gather", "reduce_scatter", "all_reduce"
  int64_t bytes = 0;           ///< of the whole buffer
  std::string implementation;  ///< "phalanx", "phalanx, private", "gloo"
  double median = 0, best = 0;
  /// Seconds that all ranks at once need to memcpy as many bytes as the call must read and write,
  /// measured in the same rounds; 0: not measured.
  double copy_median = 0;
};

struct CommRateOptions {
  std::vector<int64_t> sizes{1 << 10, 1 << 20, 64 << 20};
  double seconds = 1;  ///< about, per operation and size
  bool gloo = true;    ///< LibTorch's Gloo beside, where the ranks share a host
};

/// Measures in rounds that go through all implementations, so that a busy machine hurts all alike.
/// All ranks call it; all get the same result.
std::vector<CommRate> measure_collectives(World& world, const CommRateOptions& options);

/// Seconds of single all_reduces of `bytes`, sorted, on this rank.
std::vector<double> all_reduce_latencies(World& world, int64_t bytes, int calls);

}  // namespace phalanx
