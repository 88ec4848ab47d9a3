#pragma once

#include <memory>

#include "phalanx/comm/shared_group.h"

namespace phalanx {

/// The ranks of one host, over memory that all of them map. See shared_control.h. `key`: no other
/// group of this world has it.
std::unique_ptr<Communicator> shared_communicator(std::string name, std::string key,
                                                  std::vector<int> world_ranks, int rank,
                                                  std::shared_ptr<shared::Host> host,
                                                  std::chrono::milliseconds deadline,
                                                  Ledger& ledger, CallHistory& history);

}  // namespace phalanx
