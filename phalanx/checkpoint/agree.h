#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// How long ranks wait for one that reads, hashes or deletes as much as a checkpoint has: a slow
/// network file system takes longer than a communicator's own deadline. One that dies is noticed at
/// once all the same.
constexpr std::chrono::milliseconds disk_deadline = std::chrono::hours(6);

/// Runs `work` on every rank and returns what it returned on each; lengths may differ. If it threw
/// on any rank, all ranks throw the same Error, which names the lowest such rank: nobody goes on
/// alone into the next collective. `work` itself communicates nothing. `deadline`: see Call.
std::vector<std::string> agree(Communicator& world, std::string_view purpose,
                               const std::function<std::string()>& work,
                               std::chrono::milliseconds deadline = {});

/// Runs `work` on rank 0 only and returns what it returned there, on every rank; an error too. The
/// memory that it takes does not grow with the number of ranks.
std::string agree_with_first(Communicator& world, std::string_view purpose,
                             const std::function<std::string()>& work,
                             std::chrono::milliseconds deadline = {});

}  // namespace phalanx
