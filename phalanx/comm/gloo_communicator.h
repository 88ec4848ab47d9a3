#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <vector>

#include "phalanx/comm/history.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/world.h"

namespace c10d {
class Store;
}

namespace phalanx {

/// Ranks of several hosts, over TCP. Gloo moves the bytes; sums are ours, in rank order, so that
/// they equal those of shared memory bit for bit.
std::unique_ptr<Communicator> gloo_communicator(std::string name, std::vector<int> world_ranks,
                                                int rank, c10::intrusive_ptr<c10d::Store> store,
                                                const WorldInfo& info, const WorldOptions& options,
                                                Ledger& ledger, CallHistory& history);

}  // namespace phalanx
