#include "phalanx/checkpoint/dcp.h"

#include <algorithm>
#include <map>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/dcp_metadata.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/torch_save.h"
#include "phalanx/checkpoint/torch_source.h"
#include "phalanx/checkpoint/torch_types.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {
namespace {

using Ref = Pickle::Ref;
using Kind = Pickle::Kind;

constexpr int64_t longest_metadata = 512 << 20;
constexpr std::string_view package = "torch.distributed.checkpoint.";

bool is_metadata_class(std::string_view name) {
  static const std::set<std::string_view> ours = {
      "metadata.Metadata",         "metadata.TensorStorageMetadata",
      "metadata.MetadataIndex",    "metadata.BytesStorageMetadata",
      "metadata.TensorProperties", "metadata.ChunkStorageMetadata",
      "metadata.StorageMeta",      "metadata._MEM_FORMAT_ENCODING",
      "filesystem._StorageInfo"};
  static const std::set<std::string_view> older = {
      "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
      "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING"};
  return older.contains(name) ||
         (name.starts_with(package) && ours.contains(name.substr(package.size())));
}

struct Place {
  std::string file;
  int64_t offset, bytes;
};
using ChunkKey = std::pair<std::string, std::vector<int64_t>>;  // name, offset of the chunk

class MetadataReader {
 public:
  MetadataReader(std::string_view bytes, const std::string& label) : pickle_(bytes, label) {
    pickle_.check_globals(
        [](std::string_view name) { return is_metadata_class(name) || is_torch_data(name); });
    check(is(pickle_.root(), "metadata.Metadata"), "it holds ", pickle_.describe(pickle_.root()));
    read_places();
    read_paths();
    read_buffers();
    for (const auto& [key, value] : items("state_dict_metadata"))
      read_item(pickle_.text(key, "the name of an item"), value);
  }

  struct Item {
    std::string name;    // as in `places`
    TorchTensor tensor;  // whose parts have boxes only
  };
  std::vector<Item> tensors;
  std::vector<std::string> others;
  std::map<ChunkKey, Place> places;

 private:
  template <class... Parts>
  void check(bool condition, const Parts&... parts) const {
    require(condition, ExitCode::checkpoint, pickle_.label(),
            " is not the metadata of a DCP folder: ", parts...);
  }
  bool is(Ref ref, std::string_view name) const {
    const auto made_by = pickle_.made_by(ref);
    return made_by.starts_with(package) && made_by.substr(package.size()) == name;
  }
  std::vector<std::pair<Ref, Ref>> items(std::string_view field) const {
    return pickle_.pairs(pickle_.field(pickle_.root(), field), field);
  }

  void read_places() {
    for (const auto& [key, value] : items("storage_data")) {
      check(is(key, "metadata.MetadataIndex") && is(value, "filesystem._StorageInfo"),
            "storage_data has ", pickle_.describe(value), " for ", pickle_.describe(key),
            " (folders of other writers than FileSystemWriter are not read)");
      const std::string& name = pickle_.text(pickle_.field(key, "fqn"), "a name");
      const Ref offset = pickle_.field(key, "offset");
      const Ref transforms = pickle_.field(value, "transform_descriptors");
      const bool plain =
          pickle_.kind(transforms) == Kind::none ||
          (pickle_.kind(transforms) == Kind::list && pickle_.list(transforms, "a list").empty());
      require(plain, ExitCode::checkpoint, pickle_.label(), ": ", name,
              " is stored compressed or otherwise transformed, which is not supported");
      places[{name, pickle_.kind(offset) == Kind::none
                        ? std::vector<int64_t>()
                        : torch_size(pickle_, offset, "an offset")}] = {
          pickle_.text(pickle_.field(value, "relative_path"), "a file's name"),
          pickle_.integer(pickle_.field(value, "offset"), "a place in a file"),
          pickle_.integer(pickle_.field(value, "length"), "a length")};
    }
  }

  // The keys of nested dicts that each name was made of.
  void read_paths() {
    const Ref data = pickle_.field(pickle_.root(), "planner_data");
    if (pickle_.kind(data) != Kind::dict) return;
    for (const auto& [key, value] : pickle_.pairs(data, "planner_data")) {
      if (pickle_.kind(key) != Kind::text || pickle_.kind(value) != Kind::tuple) continue;
      auto& path = paths_[pickle_.text(key, "a name")];
      for (const Ref part : pickle_.tuple(value, "a path"))
        path.push_back(pickle_.kind(part) == Kind::text
                           ? pickle_.text(part, "a key")
                           : std::to_string(pickle_.integer(part, "a key: a str or an int")));
    }
  }

  void read_buffers() {
    const Ref names = pickle_.field(pickle_.root(), dcp_buffers_field);
    if (pickle_.kind(names) != Kind::tuple) return;  // not written by us
    for (const Ref name : pickle_.tuple(names, dcp_buffers_field))
      buffers_.insert(pickle_.text(name, "the name of a buffer"));
  }

  void read_item(const std::string& name, Ref value) {
    if (is(value, "metadata.BytesStorageMetadata")) return others.push_back(name);
    check(is(value, "metadata.TensorStorageMetadata"), name, " is ", pickle_.describe(value));
    ManifestEntry entry;
    if (buffers_.contains(name)) entry.role = "buffer";
    entry.dtype = dtype(name, pickle_.field(value, "properties"));
    entry.shape = torch_size(pickle_, pickle_.field(value, "size"), "a tensor's size");
    int64_t bytes = size_of(entry.dtype);
    for (const int64_t size : entry.shape)
      check(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), name,
            " has the impossible shape ", shape_string(entry.shape));
    for (const Ref chunk : pickle_.list(pickle_.field(value, "chunks"), "a list of chunks")) {
      ManifestEntry::Part part;
      part.box = {torch_size(pickle_, pickle_.field(chunk, "offsets"), "a chunk's offsets"),
                  torch_size(pickle_, pickle_.field(chunk, "sizes"), "a chunk's sizes")};
      check(part.box.offset.size() == entry.shape.size() &&
                part.box.size.size() == entry.shape.size(),
            "a chunk of ", name, " has ", part.box.size.size(), " dimensions");
      if (std::find(part.box.size.begin(), part.box.size.end(), 0) == part.box.size.end())
        entry.parts.push_back(std::move(part));
    }
    const auto path = paths_.find(name);
    const bool plain = path == paths_.end() || path->second.empty();
    tensors.push_back({name, {plain ? std::vector{name} : path->second, std::move(entry), ""}});
  }

  Dtype dtype(const std::string& name, Ref properties) const {
    const Ref state = pickle_.state(properties);
    const Ref type =
        pickle_.kind(state) == Kind::tuple && !pickle_.tuple(state, "properties").empty()
            ? pickle_.tuple(state, "properties")[0]
            : pickle_.field(properties, "dtype");
    const auto known = dtype_of_torch(pickle_.global(type));
    require(known.has_value(), ExitCode::checkpoint, pickle_.label(), ": ", name,
            " has elements of ", pickle_.describe(type), "; ", readable_dtypes());
    return *known;
  }

  Pickle pickle_;
  std::map<std::string, std::vector<std::string>> paths_;
  std::set<std::string> buffers_;
};

// A chunk and the archive that holds it.
struct Job {
  const std::string* name;
  ManifestEntry* entry;
  ManifestEntry::Part* part;
  Place place;
};

std::vector<Job> jobs_of(MetadataReader& metadata, const std::string& path) {
  std::vector<Job> jobs;
  for (auto& [name, tensor] : metadata.tensors) {
    ManifestEntry& entry = tensor.entry;
    std::vector<Box> boxes;
    for (auto& part : entry.parts) {
      const auto place = metadata.places.find({name, part.box.offset});
      require(place != metadata.places.end(), ExitCode::checkpoint, path, ": ", name, " ",
              to_string(part.box), " is in none of the files");
      jobs.push_back({&name, &entry, &part, place->second});
      boxes.push_back(part.box);
    }
    const std::string defect = cover_defect(entry.shape, boxes);
    require(defect.empty(), ExitCode::checkpoint, path, ": ", name, ": ", defect);
  }
  // File after file, front to back.
  std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
    return std::tie(a.place.file, a.place.offset) < std::tie(b.place.file, b.place.offset);
  });
  return jobs;
}

void check_file_name(const std::string& file, const std::string& path) {
  require(is_plain_name(file), ExitCode::checkpoint, path, ": '", file,
          "' is no name of a file in the folder");
}

// Whether every item, tensors or not, lies in a file that is long enough; the files' sizes.
std::map<std::string, int64_t> check_places(const MetadataReader& metadata, const Storage& storage,
                                            const std::string& folder, const std::string& path) {
  std::map<std::string, int64_t> sizes, used;
  for (const auto& item : storage.list(folder))
    if (!item.is_folder) sizes[item.name] = item.bytes;
  for (const auto& [key, place] : metadata.places) {
    check_file_name(place.file, path);
    const auto size = sizes.find(place.file);
    require(size != sizes.end(), ExitCode::checkpoint, path, " lacks the file ", place.file,
            ", which holds ", key.first);
    require(place.offset >= 0 && place.bytes >= 0 && place.offset <= size->second &&
                place.bytes <= size->second - place.offset,
            ExitCode::checkpoint, path, "/", place.file, " has ", size->second, " bytes, but ",
            key.first, " is said to be ", place.bytes, " bytes at ", place.offset,
            ": the file was cut");
    used.insert(*size);
  }
  return used;
}

void find_data(const Job& job, const Reader& file) {
  const Place& place = job.place;
  const auto contents = read_torch_archive({file, place.offset, place.bytes});
  require(contents.tensors.size() == 1 && contents.tensors[0].path.empty() &&
              contents.tensors[0].tensor.unread.empty() &&
              contents.tensors[0].tensor.shape == job.part->box.size &&
              contents.tensors[0].tensor.dtype == job.entry->dtype,
          ExitCode::checkpoint, file.path(), " holds something else at byte ", place.offset,
          " than ", *job.name, " ", to_string(job.part->box), " of ", name(job.entry->dtype));
  *job.part = part_of(contents.tensors[0].tensor, job.part->box, place.file);
}

}  // namespace

Source open_dcp(std::shared_ptr<Storage> storage, const std::string& folder,
                const std::string& path) {
  const std::string metadata_name = in_folder(folder, ".metadata");
  const std::string bytes = read_text(*storage, metadata_name, longest_metadata);
  MetadataReader metadata(bytes, storage->path(metadata_name));

  Source source{.format = "dcp", .storage = storage, .folder = folder, .path = path};
  source.manifest.files = check_places(metadata, *storage, folder, path);
  std::unique_ptr<Reader> file;
  std::unique_ptr<BlockReader> blocks;
  std::string open_name;
  for (const Job& job : jobs_of(metadata, path)) {
    if (!file || job.place.file != open_name) {
      open_name = job.place.file;
      blocks.reset();
      file = storage->open(in_folder(folder, open_name));
      blocks = std::make_unique<BlockReader>(*file);
    }
    find_data(job, *blocks);
  }
  TorchTensors found{.others = std::move(metadata.others)};
  for (auto& item : metadata.tensors) found.tensors.push_back(std::move(item.tensor));
  add_torch_tensors(source, std::move(found));
  return source;
}

}  // namespace phalanx
