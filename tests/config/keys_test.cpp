#include "phalanx/config/keys.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "phalanx/config/write.h"
#include "tests/config/folder.h"

namespace phalanx {
namespace {

// A value that `key` accepts and that is not its default; none if it accepts only one.
std::vector<ConfigValue> another_value(const Key& key) {
  switch (key.initial.index()) {
    case 0:
      return {!std::get<bool>(key.initial)};
    case 1: {
      const int64_t value = std::get<int64_t>(key.initial);
      return {key.range.contains(double(value + 3)) ? value + 3 : value - 3};
    }
    case 2: {
      const double value = std::get<double>(key.initial);
      return {key.range.contains(value + 0.03) ? value + 0.03 : value / 2};
    }
    case 3:
      if (key.allowed.size() == 1) return {};
      if (key.allowed.empty()) return {"another \"\\\t\x01 name"};
      return {key.initial == ConfigValue(key.allowed.back()) ? key.allowed.front()
                                                             : key.allowed.back()};
    default:
      return {std::vector<std::string>{"a b", "c"}};
  }
}

std::string override_of(const Key& key, const ConfigValue& value) {
  std::string word = to_toml(value);
  if (const auto* string = std::get_if<std::string>(&value)) word = *string;
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    word = (*list)[0] + "," + (*list)[1];
  return "--" + key.full_name() + "=" + word;
}

// Every key changes its own field, from the file and from the command line, and no other but those
// that follow from it; and what is written is read back.
TEST(Keys, EveryKeyHasAnEffect) {
  const testing::Folder folder;
  folder.file("config.json", R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
                                 "n_positions": 32, "vocab_size": 300})");
  const std::set<std::string> single = {"model.kind", "data.tokenizer"};
  const std::set<std::pair<std::string, std::string>> follows = {
      {"model.hidden_size", "model.intermediate_size"},
      {"model.num_attention_heads", "model.num_key_value_heads"}};
  const Config defaults;
  for (const Key& key : keys()) {
    SCOPED_TRACE(key.full_name());
    std::vector<ConfigValue> values = another_value(key);
    EXPECT_EQ(values.empty(), single.contains(key.full_name()));
    if (values.empty()) continue;
    if (key.name == "path") values = {folder.path()};
    const std::string toml = key.full_name() + " = " + to_toml(values[0]);
    const Config from_file = parse_config(toml, "run.toml").config;
    const Config from_word = parse_config("", "run.toml", {override_of(key, values[0])}).config;
    EXPECT_EQ(key.get(from_file), values[0]);
    EXPECT_EQ(from_file, from_word);
    EXPECT_FALSE(from_file == defaults);
    EXPECT_NE(to_toml(from_file), to_toml(defaults));
    EXPECT_EQ(parse_config(to_toml(from_file), "again.toml").config, from_file);
    if (key.name == "path") continue;
    for (const Key& other : keys())
      if (other.full_name() != key.full_name() &&
          !follows.contains({key.full_name(), other.full_name()}))
        EXPECT_EQ(other.get(from_file), other.initial) << other.full_name();
  }
}

TEST(Keys, TableIsWellFormed) {
  std::set<std::string> seen, used;
  for (const Key& key : keys()) {
    EXPECT_TRUE(seen.insert(key.full_name()).second) << key.full_name();
    used.insert(key.section);
    EXPECT_EQ(find_key(key.full_name()), &key);
    EXPECT_FALSE(key.doc.empty());
    EXPECT_FALSE(key.since.empty());
    // Defaults are accepted, but for the sizes that must be given.
    ConfigValue value = key.initial;
    const bool required = key.section == "model" && key.initial == ConfigValue(int64_t{0});
    if (!required || key.range.low == 0) EXPECT_EQ(convert(key, value), "");
  }
  EXPECT_EQ(used.size(), sections().size());
}

TEST(Keys, ReferencePageIsGenerated) {
  std::ifstream file(PHALANX_SOURCE_DIR "/docs/config.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), config_reference()) << "run `make docs`";
  for (const Key& key : keys()) {
    EXPECT_NE(config_reference().find("| `" + key.name + "` | "), std::string::npos) << key.name;
    EXPECT_NE(config_help().find("--" + key.full_name() + "="), std::string::npos);
  }
}

}  // namespace
}  // namespace phalanx
