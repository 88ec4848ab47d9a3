#pragma once

#include <string>

#include "phalanx/config/load.h"

namespace phalanx {

/// Every key with its value, as TOML that load_config() reads back to an equal config.
std::string to_toml(const Config& config);

/// The same with the origin of each value as a comment.
std::string show(const LoadedConfig& loaded);

/// docs/config.md.
std::string config_reference();

/// The keys with their defaults, for --help.
std::string config_help();

}  // namespace phalanx
