#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace phalanx {

// Limits of this process's control group (version 1 or 2) and of those above it, the tightest of
// them; nothing where there is none. `root`: where /proc and /sys are found, for tests.

/// Cores' worth of time, as systemd's CPUQuota, a container's --cpus or Slurm set it.
std::optional<double> cpu_quota(const std::string& root = "");
std::optional<int64_t> memory_limit(const std::string& root = "");

}  // namespace phalanx
