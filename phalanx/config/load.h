#pragma once

#include <map>
#include <string>
#include <vector>

#include "phalanx/config/check.h"

namespace phalanx {

struct LoadedConfig {
  Config config;
  /// "section.key" to where its value comes from: "default", "run.toml:12", "command line",
  /// "gpt2/config.json" ...; every key of the table is here.
  std::map<std::string, std::string> origins;
};

/// Reads the TOML file at `path`, the file that it names with `base = "other.toml"` (relative to
/// the file, and so on) and overrides "--section.key=value". Later ones win: default, base, file,
/// command line; of two equal overrides the last. UTF-8, with or without byte order mark.
/// Throws Error(usage) with one sentence per line: every unknown key (file, line, column, nearest
/// name), wrong type and value out of range at once, and then, if it is known for how many ranks
/// (`world_size` > 0), what check() finds that does not depend on a key that is wrong. A config
/// without such mistakes is not checked here: resolve() does that.
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides = {},
                         int world_size = 0, ConfigUse use = ConfigUse::training);

/// The same from text; `where` stands for its path in errors, origins and for `base`.
LoadedConfig parse_config(const std::string& toml, const std::string& where,
                          const std::vector<std::string>& overrides = {}, int world_size = 0,
                          ConfigUse use = ConfigUse::training);

}  // namespace phalanx
