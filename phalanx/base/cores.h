#pragma once

namespace phalanx {

/// Processors that this process may use: its affinity mask, cut by the cgroup's CPU quota.
int available_cores();

}  // namespace phalanx
