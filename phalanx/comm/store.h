#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "phalanx/comm/world.h"

namespace c10d {
class Store;
}

namespace phalanx {

/// The key-value store at master_address:master_port through which ranks meet. Rank 0 hosts it,
/// except under torchrun whose agent does (TORCHELASTIC_USE_AGENT_STORE=True). With
/// PHALANX_MASTER_FD=<fd> rank 0 hosts it on that listening socket. Keys are private to this start
/// of the run, so that a restarted one meets no keys of the dead.
c10::intrusive_ptr<c10d::Store> open_store(const WorldInfo&, std::chrono::milliseconds deadline);

/// "rank 0's store at 10.0.0.1:29500", for errors.
std::string store_name(const WorldInfo&);

/// Sets "<topic>/<rank>" to `value` and returns the values of all ranks. Throws Error(peer_lost)
/// naming the ranks that did not come before the deadline.
std::vector<std::string> exchange(c10d::Store&, const WorldInfo&, const std::string& topic,
                                  const std::string& value,
                                  std::chrono::steady_clock::time_point deadline);

}  // namespace phalanx
