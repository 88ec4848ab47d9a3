#pragma once

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "phalanx/config/config.h"

namespace phalanx {

using ConfigValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

/// Numbers that a key accepts.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;  ///< the end itself is not accepted
  bool contains(double value) const;
  std::string describe() const;  ///< "at least 1", "0 <= x < 1"
};

/// One key of the config file: parser, overrides, help, reference page and the resolved config all
/// come from the list of these. The type is that of `initial`, the default.
struct Key {
  std::string section, name, doc;
  std::string since;  ///< version that brought it
  ConfigValue initial;
  std::vector<std::string> allowed;  ///< of a string; empty: any
  Range range;                       ///< of a number
  std::function<ConfigValue(const Config&)> get;
  std::function<void(Config&, const ConfigValue&)> set;

  std::string full_name() const { return section + "." + name; }
  const char* type() const;  ///< "true or false", "integer", "number", "string", "list of strings"
};

/// All keys, section by section, in the order in which they are written.
const std::vector<Key>& keys();
const Key* find_key(std::string_view full_name);

/// A section's line in the reference.
struct Section {
  std::string name, doc;
};
const std::vector<Section>& sections();

/// What later versions will know, refused with its own sentence: "wire" or "parallel.schedule".
bool is_planned(std::string_view name);

/// What is wrong with `value` for `key`, as the end of a sentence; empty if nothing. Integers are
/// accepted for numbers, a string for a list of one.
std::string convert(const Key& key, ConfigValue& value);

/// A value from the command line: a list is written a,b,c.
std::string parse_override(const Key& key, const std::string& text, ConfigValue& value);

/// The key that was probably meant with `name` ("section.key"), which is none; empty if none is
/// near.
std::string meant_key(const std::string& name);
/// Why `name` is no key.
std::string unknown_key(const std::string& name, const std::string& meant);

/// As TOML writes it.
std::string to_toml(const ConfigValue& value);

}  // namespace phalanx
