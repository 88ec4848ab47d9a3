#pragma once

#include <string>
#include <utility>
#include <vector>

namespace phalanx {

/// Throws Error(environment) unless that many descriptors may be open at once. Raises the soft
/// limit to the hard one if that is enough.
void require_descriptors(int needed, const std::string& what_for);

using Environment = std::vector<std::pair<std::string, std::string>>;

/// torchrun's variables for one of the ranks of a run on this machine.
Environment rank_environment(int rank, int ranks, int master_port);

/// Variables of other launchers around this one, which would contradict rank_environment().
const std::vector<std::string>& foreign_variables();

}  // namespace phalanx
