#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// Every rank's bytes, on every rank, in rank order. Lengths may differ.
std::vector<std::string> all_gather_bytes(Communicator& world, const std::string& mine,
                                          std::string_view purpose);

/// Runs `work` on every rank and returns what it returned on each. If it threw on any rank, all
/// ranks throw the same Error, which names the lowest such rank: nobody goes on alone into the next
/// collective. `work` itself communicates nothing.
std::vector<std::string> agree(Communicator& world, std::string_view purpose,
                               const std::function<std::string()>& work);

}  // namespace phalanx
