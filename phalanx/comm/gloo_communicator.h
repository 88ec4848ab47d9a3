#pragma once

#include <memory>

#include "phalanx/comm/gloo_group.h"

namespace phalanx {

/// Ranks of several hosts, over TCP. Gloo moves the bytes; sums are ours, in rank order, so that
/// they equal those of shared memory bit for bit. A missed deadline ends the group; abort() ends
/// the process with exit code 4, as Gloo has no other way out of a call.
std::unique_ptr<Communicator> gloo_communicator(std::shared_ptr<gloo_transport::Group> group);

}  // namespace phalanx
