#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/comm/world.h"

namespace phalanx::testing {

struct RanksOptions {
  Transport transport = Transport::shared_memory;
  std::chrono::seconds deadline{60};  ///< for the whole test; then every rank is killed
  std::chrono::milliseconds call_deadline{20000};  ///< of collectives
  bool debug = false;
};

/// Runs `body` in `ranks` forked processes that have joined one World. A failed expectation or an
/// exception in any of them fails the calling test, with the rank's output above it. Call from a
/// process that has run no LibTorch operation with more than one thread.
void run_ranks(int ranks, std::function<void(World& world)> body, const RanksOptions& = {});

/// The same without joining a World: for tests of joining, of death and of signals. Returns the
/// exit status of each process as waitpid() gives it; -1 where the deadline killed it.
std::vector<int> fork_ranks(int ranks, std::function<int(const WorldInfo& info)> body,
                            std::chrono::seconds deadline = std::chrono::seconds(60));

/// A new empty folder, removed at exit of the process that made it.
std::string temporary_folder();
/// The same in memory, where the system has such a place: for tests that flush a thousand times.
std::string memory_folder();

}  // namespace phalanx::testing
