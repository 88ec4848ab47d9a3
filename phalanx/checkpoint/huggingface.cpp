#include "phalanx/checkpoint/huggingface.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/spec/huggingface.h"

namespace phalanx {
namespace {

using nlohmann::json;

constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* single_name = "model.safetensors";

// What to read: files, and for each the tensors that the index puts there (all without an index).
struct Plan {
  std::map<std::string, std::optional<std::set<std::string>>> files;
  bool has_index = false;
};

Plan plan_from_index(const Storage& storage) {
  Plan plan{.has_index = true};
  const std::string path = storage.path(index_name);
  const std::string contents = read_text(storage, index_name);
  const std::string kind = foreign_content(contents);
  require(kind.empty(), ExitCode::checkpoint, path, " is ", kind);
  try {
    const json weight_map = json::parse(contents).at("weight_map");
    for (const auto& [tensor, file] : weight_map.items()) {
      const auto name = file.get<std::string>();
      require(is_plain_name(name), ExitCode::checkpoint, "'", name, "' is no file of its folder");
      auto& tensors = plan.files[name];
      if (!tensors) tensors.emplace();
      tensors->insert(tensor);
    }
  } catch (const std::exception& error) {
    fail(ExitCode::checkpoint, path, " cannot be used: ", error.what());
  }
  require(!plan.files.empty(), ExitCode::checkpoint, path, " lists no tensors; copy it again");
  return plan;
}

void check_files(const Storage& storage, const Plan& plan, const std::vector<std::string>& there) {
  std::vector<std::string> absent;
  for (const auto& [file, tensors] : plan.files)
    if (std::find(there.begin(), there.end(), file) == there.end())
      absent.push_back(text(file, " (", tensors->size(), " tensors)"));
  require(absent.empty(), ExitCode::checkpoint, storage.path(""), " lacks ", join(absent),
          ", which ", index_name, " names: copy or download ", absent.size() == 1 ? "it" : "them",
          " again");
}

Plan plan_of(const Storage& storage, const std::vector<Storage::Item>& items) {
  std::vector<std::string> files;
  bool has_index = false;
  for (const auto& item : items) {
    if (item.is_folder) continue;
    if (item.name.ends_with(".safetensors")) files.push_back(item.name);
    has_index = has_index || item.name == index_name;
  }
  Plan plan;
  if (has_index) {
    plan = plan_from_index(storage);
    check_files(storage, plan, files);
  } else if (std::find(files.begin(), files.end(), single_name) != files.end()) {
    plan.files[single_name];
  } else {
    require(files.size() == 1, ExitCode::checkpoint, storage.path(""), " holds ", files.size(),
            " safetensors files (", files[0], " ...) and neither ", single_name, " nor ",
            index_name, ", which says what lies where; copy it too, or name one file");
    plan.files[files[0]];
  }
  for (const auto& file : files)
    if (!plan.files.contains(file))
      log_warning(text(storage.path(file), " is passed over: ",
                       plan.has_index ? text(index_name, " does not name it")
                                      : text("the weights are in ", single_name)));
  return plan;
}

// save_full() calls a tensor that is no parameter "name:role"; Hugging Face's names have no colon.
std::pair<std::string, std::string> name_and_role(const std::string& stored) {
  const size_t colon = stored.rfind(':');
  if (colon == std::string::npos || colon == 0) return {stored, "parameter"};
  const std::string role = stored.substr(colon + 1);
  const bool word = !role.empty() && std::isalpha(static_cast<unsigned char>(role[0])) &&
                    role.find_first_of("[]./ ") == std::string::npos;
  if (!word) return {stored, "parameter"};
  return {stored.substr(0, colon), role};
}

// Adds what a file holds under today's names.
void add_file(Source& source, const std::string& file,
              const std::optional<std::set<std::string>>& listed, const std::string& model_type) {
  const auto opened = source.storage->open(file);
  source.manifest.files[file] = opened->size();
  std::set<std::string> found;
  size_t unlisted = 0;
  const auto is_buffer = [&](const std::string& name) {
    return huggingface_name(model_type, name).empty();
  };
  for (const TensorInfo& tensor : read_safetensors_header(*opened, is_buffer)) {
    found.insert(tensor.name);
    if (listed && !listed->contains(tensor.name)) {
      ++unlisted;
      continue;
    }
    const auto [name, role] = name_and_role(tensor.name);
    ManifestEntry entry{huggingface_name(model_type, name), role, tensor.dtype, tensor.shape, {}};
    entry.parts.push_back({whole_box(tensor.shape), file, tensor.offset, tensor.bytes, {}, {}});
    source.manifest.entries.push_back(std::move(entry));
  }
  std::vector<std::string> lost;
  if (listed)
    for (const auto& name : *listed)
      if (!found.contains(name) && !is_buffer(name)) lost.push_back(name);
  require(lost.empty(), ExitCode::checkpoint, opened->path(), " lacks ", join(lost), ", which ",
          index_name, " puts there: the file is of another revision, or was not copied whole");
  if (unlisted > 0)
    log_warning(text(unlisted, " tensors of ", opened->path(), " are passed over: ", index_name,
                     " does not list them"));
}

}  // namespace

bool holds_huggingface(const std::vector<Storage::Item>& items) {
  return std::any_of(items.begin(), items.end(), [](const auto& item) {
    return !item.is_folder && (item.name == index_name || item.name.ends_with(".safetensors"));
  });
}

Source read_huggingface(std::shared_ptr<Storage> storage, const std::string& file) {
  Source source{.format = "huggingface", .storage = storage};
  source.path = storage->path(file);
  const auto items = storage->list("");
  std::string model_type;
  for (const auto& item : items) {
    if (item.name != "config.json" || item.is_folder) continue;
    const std::string config = read_text(*storage, "config.json");
    const std::string where = storage->path("config.json");
    refuse_quantized(config, where);
    model_type = huggingface_model_type(config, where);
    source.manifest.run.values[huggingface_config_key] = config;
  }
  Plan plan;
  if (file.empty())
    plan = plan_of(*storage, items);
  else
    plan.files[file];
  if (plan.has_index) source.index = storage->path(index_name);
  for (const auto& [name, listed] : plan.files) add_file(source, name, listed, model_type);
  sort_entries(source.manifest, source.path);  // with or without "transformer." is one name
  return source;
}

}  // namespace phalanx
