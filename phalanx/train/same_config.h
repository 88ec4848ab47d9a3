#pragma once

#include "phalanx/comm/communicator.h"
#include "phalanx/config/config.h"

namespace phalanx {

/// Throws Error(usage) on all ranks, with the key and the ranks, if they have different configs:
/// they would train different models, or wait for calls that others never make. What may differ
/// from host to host (paths of data, threads) is not compared. Collective.
void require_same_config(Communicator& everyone, const Config& config);

}  // namespace phalanx
