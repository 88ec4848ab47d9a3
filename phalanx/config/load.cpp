#include "phalanx/config/load.h"

#include <toml++/toml.h>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/nearest.h"
#include "phalanx/config/keys.h"
#include "phalanx/spec/huggingface.h"

namespace phalanx {
namespace {

struct Given {
  ConfigValue value;
  std::string origin;
};

struct Mistake {
  toml::source_position at;
  std::string sentence;
};

// Reads files and overrides into one map from key to value; what is wrong goes to `errors`.
class ConfigReader {
 public:
  std::map<std::string, Given> given;
  std::vector<std::string> errors;
  bool whole = true;  // every file could be read

  // A key or section ("model.") whose values nobody knows.
  void doubt(const std::string& name, const char* end = "") {
    if (!name.empty()) doubtful_.insert(name + end);
  }
  // Whether a rule may be broken only because of the mistakes.
  bool doubts(const Violation& violation) const {
    return std::any_of(doubtful_.begin(), doubtful_.end(), [&](const std::string& name) {
      const std::string section = name.substr(0, name.find('.') + 1);
      return violation.key + "." == section || violation.key == name ||
             (name == section && violation.key.starts_with(name)) ||
             violation.sentence.find(name) != std::string::npos;
    });
  }

  void file(const std::filesystem::path& path) {
    try {
      source(read_file(path.string(), ExitCode::usage), path.string());
    } catch (const Error& error) {
      errors.push_back(text(error.what(), "; give the path of a TOML file"));
      whole = false;
    }
  }

  void source(std::string toml, const std::string& where) {
    const std::string start = toml.substr(0, 2);
    if (start == "\xff\xfe" || start == "\xfe\xff" ||
        toml.substr(0, 4).find('\0') != std::string::npos) {
      errors.push_back(where + " is UTF-16 or binary, not UTF-8; save it as UTF-8");
      whole = false;
      return;
    }
    if (toml.starts_with("\xef\xbb\xbf")) toml.erase(0, 3);  // a byte order mark
    std::vector<Mistake> mistakes;
    try {
      const toml::table root = toml::parse(std::string_view(toml), where);
      open_.push_back(where);
      base(root, where, mistakes);
      for (const auto& [key, node] : root)
        if (key.str() != "base") section(key, node, where, mistakes);
      open_.pop_back();
    } catch (const toml::parse_error& error) {
      mistakes.push_back({error.source().begin, std::string(error.description())});
      whole = false;
    }
    std::sort(mistakes.begin(), mistakes.end(), [](const Mistake& a, const Mistake& b) {
      return std::tie(a.at.line, a.at.column) < std::tie(b.at.line, b.at.column);
    });
    for (const auto& [at, sentence] : mistakes)
      errors.push_back(text(where, ":", at.line, ":", at.column, ": ", sentence));
  }

  void override_with(const std::vector<std::string>& words) {
    for (size_t i = 0; i < words.size(); ++i) {
      // A key without "=": what follows was meant as its value.
      if (!words[i].starts_with("--") || !find_key(words[i].substr(2))) {
        override_with(words[i]);
        continue;
      }
      doubt(words[i].substr(2));
      const bool value = i + 1 < words.size() && !words[i + 1].starts_with("--");
      errors.push_back(text("command line: '", words[i], "' is no --section.key=value; write ",
                            words[i], "=", value ? words[i + 1] : "VALUE"));
      i += value;
    }
  }

  void override_with(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    if (!name.starts_with("--") || name.find('.') == std::string::npos ||
        equals == std::string::npos) {
      errors.push_back(text("command line: '", word, "' is no --section.key=value"));
      return;
    }
    const Key* key = find_key(name.substr(2));
    if (!key) {
      const std::string meant = meant_key(name.substr(2));
      doubt(meant);
      errors.push_back("command line: " + unknown_key(name.substr(2), meant));
      return;
    }
    ConfigValue value;
    const std::string wrong = parse_override(*key, word.substr(equals + 1), value);
    if (wrong.empty()) {
      given[key->full_name()] = {value, "command line"};
      return;
    }
    doubt(key->full_name());
    errors.push_back("command line: " + wrong);
  }

 private:
  void base(const toml::table& root, const std::string& where, std::vector<Mistake>& mistakes) {
    const toml::node* node = root.get("base");
    if (!node) return;
    const bool so_far = std::exchange(whole, false);
    const auto name = node->value<std::string>();
    const auto at = node->source().begin;
    if (!node->is_string() || name->empty()) {
      mistakes.push_back({at, "base must be a string, the path of another config file"});
      return;
    }
    const auto path = (std::filesystem::path(where).parent_path() / *name).lexically_normal();
    std::error_code missing;
    if (!std::filesystem::is_regular_file(path, missing)) {
      mistakes.push_back({at, text("base = \"", *name, "\": ", path.string(),
                                   " is no file; the path is relative to this file")});
      return;
    }
    for (const std::string& open : open_) {
      if (!std::filesystem::equivalent(open, path, missing)) continue;
      mistakes.push_back(
          {at, text("base = \"", *name, "\" comes back to a file that is being read (",
                    join(open_, " -> "), " -> ", path.string(), "); break the cycle")});
      return;
    }
    whole = so_far;
    file(path);
  }

  void section(const toml::key& name, const toml::node& node, const std::string& where,
               std::vector<Mistake>& mistakes) {
    const auto at = name.source().begin;
    std::vector<std::string> names;
    for (const Section& section : sections()) names.push_back(section.name);
    const std::string word(name.str());
    const toml::table* table = node.as_table();
    if (std::find(names.begin(), names.end(), word) != names.end()) {
      if (!table) {
        doubt(word, ".");
        mistakes.push_back({at, text("'", word, "' is a section; write [", word,
                                     "] on a line of its own and its keys below")});
        return;
      }
      for (const auto& [key, value] : *table)
        entry(word + "." + std::string(key.str()), key.source().begin, value, where, mistakes);
    } else if (is_planned(word)) {
      mistakes.push_back({at, text("[", word, "] is not available in this version; leave it out")});
    } else if (table) {
      doubt(nearest(word, names), ".");
      mistakes.push_back({at, text("unknown section [", word, "]", did_you_mean(word, names))});
    } else {
      mistakes.push_back({at, text("'", word, "' is in no section", section_of(word))});
    }
  }

  static std::string section_of(const std::string& name) {
    for (const Key& key : keys())
      if (key.name == name) return text("; did you mean '", key.full_name(), "'?");
    return "; write it below [section]";
  }

  void entry(const std::string& name, toml::source_position at, const toml::node& node,
             const std::string& where, std::vector<Mistake>& mistakes) {
    const Key* key = find_key(name);
    if (!key) {
      const std::string meant = meant_key(name);
      doubt(meant);
      mistakes.push_back({at, unknown_key(name, meant)});
      return;
    }
    std::optional<ConfigValue> value = value_of(node);
    const std::string wrong =
        value ? convert(*key, *value)
              : text(name, " is a table, a date or a list of other things than strings, not ",
                     key->type());
    if (wrong.empty()) {
      given[name] = {*value, text(where, ":", at.line)};
      return;
    }
    doubt(name);
    mistakes.push_back({node.source().begin, wrong});
  }

  static std::optional<ConfigValue> value_of(const toml::node& node) {
    if (const auto* value = node.as_boolean()) return value->get();
    if (const auto* value = node.as_integer()) return value->get();
    if (const auto* value = node.as_floating_point()) return value->get();
    if (const auto* value = node.as_string()) return value->get();
    if (!node.is_array()) return std::nullopt;
    std::vector<std::string> list;
    for (const toml::node& element : *node.as_array()) {
      if (!element.is_string()) return std::nullopt;
      list.push_back(element.as_string()->get());
    }
    return list;
  }

  std::vector<std::string> open_;  // files that are being read, outermost first
  std::set<std::string> doubtful_;
};

// The model from its folder, or what of the sizes follows from others.
void complete_model(LoadedConfig& loaded, ConfigReader& reader) {
  ModelConfig& model = loaded.config.model;
  auto follows = [&](const char* name, int64_t& size, int64_t value, const char* origin) {
    if (size != 0) return;
    size = value;
    loaded.origins[name] = origin;
  };
  if (model.path.empty()) {
    follows("model.num_key_value_heads", model.spec.num_key_value_heads,
            model.spec.num_attention_heads, "follows model.num_attention_heads");
    follows("model.intermediate_size", model.spec.intermediate_size, 4 * model.spec.hidden_size,
            "follows model.hidden_size");
    return;
  }
  const ModelSpec given = model.spec;
  try {
    model.spec = read_huggingface_config(model.path);
  } catch (const Error& error) {
    reader.doubt("model.");
    reader.errors.push_back(error.what());
  }
  for (const Key& key : keys()) {
    if (key.section != "model" || key.name == "path") continue;
    const std::string name = key.full_name();
    const auto found = reader.given.find(name);
    if (found == reader.given.end())
      loaded.origins[name] = model.path + "/config.json";
    else if (key.name.ends_with("_pdrop"))
      key.set(loaded.config, found->second.value);
    else
      reader.errors.push_back(text(found->second.origin, ": ", name,
                                   " is given, and so is model.path = \"", model.path,
                                   "\", whose config.json says it; leave one out"));
  }
}

LoadedConfig finish(ConfigReader& reader, int world_size, ConfigUse use) {
  LoadedConfig loaded;
  for (const Key& key : keys()) {
    const auto found = reader.given.find(key.full_name());
    const bool given = found != reader.given.end();
    loaded.origins[key.full_name()] = given ? found->second.origin : "default";
    if (given) key.set(loaded.config, found->second.value);
  }
  complete_model(loaded, reader);
  Layout& parallel = loaded.config.parallel;
  for (auto [name, dtype] : {std::pair{"precision.master", &parallel.master},
                             {"precision.reduce", &parallel.reduce_dtype}})
    if (parallel.compute == Dtype::float64 && !reader.given.contains(name)) {
      *dtype = Dtype::float64;
      loaded.origins[name] = "follows precision.compute";
    }
  if (!reader.errors.empty() && reader.whole && world_size > 0)
    for (const Violation& violation : check(loaded.config, world_size, use))
      if (!reader.doubts(violation)) reader.errors.push_back(violation.sentence);
  require(reader.errors.empty(), ExitCode::usage, join(reader.errors, "\n"));
  return loaded;
}

}  // namespace

LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides,
                         int world_size, ConfigUse use) {
  ConfigReader reader;
  reader.file(path);
  reader.override_with(overrides);
  return finish(reader, world_size, use);
}

LoadedConfig parse_config(const std::string& toml, const std::string& where,
                          const std::vector<std::string>& overrides, int world_size,
                          ConfigUse use) {
  ConfigReader reader;
  reader.source(toml, where);
  reader.override_with(overrides);
  return finish(reader, world_size, use);
}

}  // namespace phalanx
