#include "phalanx/checkpoint/source.h"

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/dcp.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/huggingface.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/checkpoint/torch_save.h"
#include "phalanx/checkpoint/verify.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

using Items = std::vector<Storage::Item>;

Source open_checkpoint(std::shared_ptr<Storage> storage, const std::string& folder) {
  Source source{.format = "phalanx", .storage = storage, .folder = folder};
  source.path = storage->path(folder);
  source.manifest = read_manifest(*storage, folder);
  require_sizes(*storage, folder, source.manifest);
  return source;
}

// The newest checkpoint of a folder of them; none if it has none.
std::optional<Source> open_newest(std::shared_ptr<Storage> storage) {
  const auto newest = newest_candidate(*storage);
  if (!newest) return std::nullopt;
  return open_checkpoint(storage, *newest);
}

std::optional<Source> open_folder(const std::string& path, std::shared_ptr<Storage> storage,
                                  const Items& items) {
  if (holds(items, "manifest.json", false)) return open_checkpoint(storage, "");
  refuse_unfinished(path, items);
  if (holds(items, ".metadata", false)) return open_dcp(storage, "", path);
  if (holds_huggingface(items)) return read_huggingface(storage);
  if (holds(items, "checkpoints", true)) return open_newest(open_storage(path + "/checkpoints"));
  return open_newest(storage);
}

// `path` as a file: the folder that holds it, and its name.
std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::optional<Source> open_file(const std::string& path) {
  const auto [folder, name] = split(path);
  if (folder.ends_with(":/")) return std::nullopt;  // "s3://bucket"
  std::shared_ptr<Storage> storage = open_storage(folder);
  if (name.empty() || !holds(storage->list(""), name, false)) return std::nullopt;
  if (name.ends_with(".safetensors")) return read_huggingface(storage, name);
  if (begins_as_torch_save(*storage->open(name))) return open_torch_save(storage, name, path);
  return std::nullopt;
}

bool is_file(const std::string& path) {
  return !is_url(path) && kind_of_path(path, ExitCode::checkpoint) == PathKind::file;
}

// What lies there instead, as the end of a sentence.
std::string found_at(const std::string& path) {
  if (is_file(path)) return "it is a file of another kind";
  std::vector<std::string> names;
  for (const auto& item : open_storage(path)->list("")) names.push_back(item.name);
  if (names.empty()) return "there is nothing";
  const size_t shown = std::min<size_t>(names.size(), 8);
  return text("found only ", join(std::vector(names.begin(), names.begin() + shown)),
              shown < names.size() ? " ..." : "");
}

}  // namespace

std::optional<Source> find_source(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (is_file(path)) return open_file(path);
  std::shared_ptr<Storage> storage = open_storage(path);
  const Items items = storage->list("");
  return items.empty() ? open_file(path) : open_folder(path, storage, items);
}

Source open_source(const std::string& path, bool tells) {
  auto source = find_source(path);
  require(
      source.has_value(), ExitCode::checkpoint, path,
      " holds no tensors that can be read: ", found_at(path),
      "; give a checkpoint (with manifest.json), a run's folder, a Hugging Face folder (with "
      "*.safetensors), a folder of PyTorch's distributed checkpoint (with .metadata), or a file of "
      "torch.save");
  if (tells)
    for (const auto& notice : source->notices) log_info(text(source->path, ": ", notice));
  return std::move(*source);
}

void require_hashes(const Source& source) {
  if (source.format != "phalanx") return;
  const std::string damaged = content_defect(*source.storage, source.folder, source.manifest);
  require(damaged.empty(), ExitCode::checkpoint, damaged,
          "; nothing was written, take another checkpoint");
}

void read_box(const Source& source, const ManifestEntry& entry, const Box& box,
              const at::Tensor& to) {
  const StateEntry wanted{entry.name, entry.role, dtype_of(to), entry.shape, {{box, to}}};
  read_parts(*source.storage, source.folder, {{&wanted, &entry}});
}

}  // namespace phalanx
