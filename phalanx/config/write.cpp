#include "phalanx/config/write.h"

#include <algorithm>

#include "phalanx/base/text.h"
#include "phalanx/config/keys.h"

namespace phalanx {
namespace {

bool is_required(const Key& key) {
  return key.section == "model" && key.range.low == 1 && key.initial == ConfigValue(int64_t{0});
}

// A size that model.path gives, or that is missing, is shown but not part of the TOML.
bool is_comment(const Config& config, const Key& key) {
  if (key.section != "model" || key.name == "path" || key.name.ends_with("_pdrop")) return false;
  return !config.model.path.empty() || (is_required(key) && key.get(config) == key.initial);
}

std::string line_of(const Config& config, const Key& key) {
  return text(is_comment(config, key) ? "# " : "", key.name, " = ", to_toml(key.get(config)));
}

// One [section] after the other with the lines that `line` makes of its keys.
template <class Line>
std::string by_section(const Line& line) {
  std::string written;
  for (const Section& section : sections()) {
    written += text(written.empty() ? "" : "\n", "[", section.name, "]\n");
    for (const Key& key : keys())
      if (key.section == section.name) written += line(key);
  }
  return written;
}

std::string accepted(const Key& key) {
  if (!key.allowed.empty()) {
    std::vector<std::string> quoted;
    for (const auto& word : key.allowed) quoted.push_back("`\"" + word + "\"`");
    return join(quoted, ", ");
  }
  const bool number = key.initial.index() == 1 || key.initial.index() == 2;
  return number ? text(key.type(), ", ", key.range.describe()) : key.type();
}

}  // namespace

std::string to_toml(const Config& config) {
  return by_section(
      [&](const Key& key) { return is_comment(config, key) ? "" : line_of(config, key) + "\n"; });
}

std::string show(const LoadedConfig& loaded) {
  size_t width = 0;
  for (const Key& key : keys()) width = std::max(width, line_of(loaded.config, key).size());
  width = std::min<size_t>(width, 48);
  return by_section([&](const Key& key) {
    const std::string line = line_of(loaded.config, key);
    if (is_required(key) && key.get(loaded.config) == key.initial)
      return text("# ", key.name, " is missing\n");
    const std::string gap(line.size() < width ? width - line.size() : 0, ' ');
    return text(line, gap, "  # ", loaded.origins.at(key.full_name()), "\n");
  });
}

std::string config_reference() {
  std::string page =
      "# Config reference\n\n"
      "`phalanx config reference` prints this page from the table of keys.\n\n"
      "A run is described by one TOML file (UTF-8). `base = \"other.toml\"` at its top takes over "
      "another file's values; the path is relative to the file. On the command line "
      "`--section.key=value` overrides (lists: `a,b,c`). Later ones win: default, base, file, "
      "command line. `phalanx config show FILE` prints every value with its origin, "
      "`phalanx config check FILE --world-size N` all that is wrong with it for N ranks. Errors "
      "name file, line and column, come all at once, and end the program with exit code 2.\n";
  for (const Section& section : sections()) {
    page += text("\n## [", section.name, "]\n\n", section.doc,
                 "\n\n| key | default | accepted | meaning | since |\n"
                 "| --- | --- | --- | --- | --- |\n");
    for (const Key& key : keys())
      if (key.section == section.name)
        page += text("| `", key.name, "` | ",
                     is_required(key) ? "required" : "`" + to_toml(key.initial) + "`", " | ",
                     accepted(key), " | ", key.doc, " | ", key.since, " |\n");
  }
  return page;
}

std::string config_help() {
  std::string help = "Keys of the config, as --section.key=value with their defaults:\n";
  for (const Key& key : keys())
    help += text("  --", key.full_name(), "=",
                 is_required(key) ? "(required)" : to_toml(key.initial), "  ", key.doc, "\n");
  return help;
}

}  // namespace phalanx
