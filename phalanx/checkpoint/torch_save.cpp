#include "phalanx/checkpoint/torch_save.h"

#include <algorithm>
#include <map>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/torch_source.h"
#include "phalanx/checkpoint/torch_types.h"

namespace phalanx {
namespace {

using Ref = Pickle::Ref;
using Kind = Pickle::Kind;

constexpr int64_t longest_pickle = 512 << 20;
constexpr int deepest = 64;
constexpr int64_t longest_paths = 256 << 20;

// The first bytes of what torch.save wrote before version 1.6: a pickle of its magic number.
constexpr std::string_view old_magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
                                     14);

// An archive's entries by their names without the first folder, which can have any name.
struct Archive {
  ZipRange range;
  std::map<std::string, ZipEntry> entries;

  explicit Archive(const ZipRange& whole) : range(whole) {
    for (auto& entry : read_zip_directory(range)) {
      const size_t slash = entry.name.find('/');
      if (slash != std::string::npos) entries.emplace(entry.name.substr(slash + 1), entry);
    }
    const std::string& path = range.file.path();
    for (const auto& [name, entry] : entries)
      require(name != "constants.pkl" && !name.starts_with("code/"), ExitCode::checkpoint, path,
              " is a TorchScript archive (torch.jit.save); save its state_dict() with torch.save");
    require(entries.contains("data.pkl"), ExitCode::checkpoint, path,
            " is a zip archive, but torch.save did not write it: it has no data.pkl");
    if (const auto order = entries.find("byteorder"); order != entries.end())
      require(read_entry(range, order->second, 16) == "little", ExitCode::checkpoint, path,
              " was written on a big-endian machine, which is not supported");
  }
};

class ContentsReader {
 public:
  explicit ContentsReader(const ZipRange& range)
      : archive_(range),
        pickle_(read_entry(range, archive_.entries.at("data.pkl"), longest_pickle),
                range.file.path()) {}

  TorchContents read() {
    refuse_module();
    pickle_.check_globals(is_torch_data);
    std::vector<std::string> path;
    walk(pickle_.root(), path);
    return std::move(out_);
  }

 private:
  void refuse_module() const {
    const Ref root = pickle_.root();
    require(pickle_.field(root, "_modules") == 0 && pickle_.field(root, "_parameters") == 0,
            ExitCode::checkpoint, pickle_.label(), " holds a whole pickled module (",
            pickle_.made_by(root), "), which is code and not data; save its state_dict() instead");
  }

  // Whether any tensor is below. A container without any is one of the others as a whole.
  bool walk(Ref ref, std::vector<std::string>& path) {
    require(path.size() <= deepest, ExitCode::checkpoint, pickle_.label(),
            " nests its values too deeply at ", place(path));
    if (is_tensor(ref)) {
      count(path);
      out_.tensors.push_back({path, tensor(pickle_.made_by(ref), pickle_.arguments(ref), path)});
      return true;
    }
    const size_t others = out_.others.size();
    bool any = false;
    const auto visit = [&](std::string key, Ref value) {
      path.push_back(std::move(key));
      any |= walk(value, path);
      path.pop_back();
    };
    if (is_dict(ref)) {
      for (const auto& [key, value] : pickle_.pairs(ref, "a dict")) visit(key_text(key), value);
    } else if (pickle_.kind(ref) == Kind::list || pickle_.kind(ref) == Kind::tuple) {
      const auto& items = pickle_.kind(ref) == Kind::list ? pickle_.list(ref, "a list")
                                                          : pickle_.tuple(ref, "a tuple");
      for (size_t i = 0; i < items.size(); ++i) visit(std::to_string(i), items[i]);
    }
    if (!any) {
      out_.others.resize(others);
      count(path);
      out_.others.push_back(place(path));
    }
    return any;
  }

  // Keys that share nodes can be long and many.
  void count(const std::vector<std::string>& path) {
    for (const auto& key : path) path_bytes_ += static_cast<int64_t>(key.size()) + 1;
    require(path_bytes_ <= longest_paths, ExitCode::checkpoint, pickle_.label(),
            " has keys of more than ", longest_paths, " bytes in all");
  }

  static std::string place(const std::vector<std::string>& path) {
    return path.empty() ? "its top" : join(path, ".");
  }

  bool is_dict(Ref ref) const {
    if (pickle_.kind(ref) == Kind::dict) return true;
    const auto made_by = pickle_.made_by(ref);
    return made_by == "collections.OrderedDict" || made_by == "collections.defaultdict";
  }
  bool is_tensor(Ref ref) const {
    const auto made_by = pickle_.made_by(ref);
    return made_by.starts_with("torch._utils._rebuild_") || made_by == rebuild_type;
  }

  std::string key_text(Ref key) const {
    if (pickle_.kind(key) == Kind::integer) return std::to_string(pickle_.integer(key, "a key"));
    return pickle_.text(key, "a key of a dict: a str or an int");
  }

  StoredTensor tensor(std::string_view made_by, Ref arguments, const std::vector<std::string>& path,
                      int depth = 0) {
    const auto& fields = pickle_.tuple(arguments, "the arguments of a tensor");
    const auto need = [&](size_t count) {
      require(fields.size() >= count && depth < 4, ExitCode::checkpoint, pickle_.label(), ": ",
              place(path), " is not made as tensors are");
    };
    if (made_by == "torch._utils._rebuild_parameter" ||
        made_by == "torch._utils._rebuild_parameter_with_state") {
      need(1);
      return tensor(pickle_.made_by(fields[0]), pickle_.arguments(fields[0]), path, depth + 1);
    }
    if (made_by == rebuild_type) {  // a tensor with attributes: function, type, arguments, state
      need(4);
      return tensor(pickle_.global(fields[0]), fields[2], path, depth + 1);
    }
    const bool untyped = made_by == "torch._utils._rebuild_tensor_v3";
    require(untyped || made_by == "torch._utils._rebuild_tensor" ||
                made_by == "torch._utils._rebuild_tensor_v2",
            ExitCode::checkpoint, pickle_.label(), ": ", place(path), " is made by ", made_by,
            "; only dense tensors are read");
    need(untyped ? 7 : 4);
    StoredTensor out;
    out.shape = torch_size(pickle_, fields[2], "a tensor's size");
    out.strides = pickle_.integers(fields[3], "a tensor's strides");
    place_in_storage(out, fields[0], pickle_.integer(fields[1], "an offset in a storage"),
                     untyped ? pickle_.global(fields[6]) : "", path);
    const size_t metadata = untyped ? 7 : 6;
    if (fields.size() > metadata) refuse_metadata(out, fields[metadata], path);
    return out;
  }

  // What the elements are besides their bytes: {'neg': True} where all signs are turned.
  void refuse_metadata(StoredTensor& out, Ref metadata, const std::vector<std::string>& path) {
    if (pickle_.kind(metadata) == Kind::none) return;
    std::vector<std::string> names;
    for (const auto& [key, value] : pickle_.pairs(metadata, "the metadata of a tensor"))
      names.push_back(key_text(key));
    if (!names.empty())
      out.unread = text(pickle_.label(), ": ", place(path), " is not as its bytes say (",
                        join(names), "); save it after resolve_neg() and resolve_conj()");
  }

  // `dtype`: of the tensor where its storage is bytes without a type.
  void place_in_storage(StoredTensor& out, Ref storage, int64_t first, std::string_view dtype,
                        const std::vector<std::string>& path) {
    const auto& id = pickle_.tuple(pickle_.persistent_id(storage), "a storage's id");
    require(id.size() == 5 && pickle_.text(id[0], "a storage's id") == "storage",
            ExitCode::checkpoint, pickle_.label(), ": ", place(path),
            " lies in something that is no storage");
    const std::string_view type = dtype.empty() ? pickle_.global(id[1]) : dtype;
    const auto known = dtype.empty() ? dtype_of_storage(type) : dtype_of_torch(type);
    if (!known) {  // no error yet: what is left out may have any type
      out.unread = text(pickle_.label(), ": ", place(path), " has elements of ", type, "; ",
                        readable_dtypes());
      return;
    }
    out.dtype = *known;
    const std::string& key = pickle_.text(id[2], "a storage's key");
    const auto record = archive_.entries.find("data/" + key);
    require(record != archive_.entries.end(), ExitCode::checkpoint, pickle_.label(), ": ",
            place(path), " lies in data/", key, ", which the archive lacks");
    const int64_t width = size_of(out.dtype), held = record->second.bytes;
    const int64_t span = span_of(out);
    require(first >= 0 && span >= 0 && first <= held / width && span <= held / width - first,
            ExitCode::checkpoint, pickle_.label(), ": ", place(path), " of shape [",
            join(out.shape), "] and strides [", join(out.strides), "] at ", first,
            " goes beyond its storage of ", held, " bytes");
    const auto [data, fresh] = located_.try_emplace(key, 0);
    if (fresh) data->second = locate(archive_.range, record->second);
    out.offset = data->second + first * width;
    out.bytes = span * width;
  }

  // Elements from the first to the last of a tensor; -1 if that is impossible.
  static int64_t span_of(const StoredTensor& tensor) {
    if (tensor.shape.size() != tensor.strides.size() || tensor.shape.size() > deepest) return -1;
    int64_t span = 1, count = size_of(tensor.dtype), reach = 0;
    bool empty = false;
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      if (tensor.shape[dim] < 0 || tensor.strides[dim] < 0) return -1;
      empty |= tensor.shape[dim] == 0;
    }
    if (empty) return 0;
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim)
      if (__builtin_mul_overflow(count, tensor.shape[dim], &count) ||
          __builtin_mul_overflow(tensor.shape[dim] - 1, tensor.strides[dim], &reach) ||
          __builtin_add_overflow(span, reach, &span))
        return -1;
    return span;
  }

  static constexpr std::string_view rebuild_type = "torch._tensor._rebuild_from_type_v2";
  Archive archive_;
  Pickle pickle_;
  TorchContents out_;
  int64_t path_bytes_ = 0;
  std::map<std::string, int64_t> located_;  // where each storage's data begin
};

std::string first_bytes(const Reader& file) {
  std::string bytes(static_cast<size_t>(std::min<int64_t>(16, file.size())), '\0');
  file.read(bytes.data(), static_cast<int64_t>(bytes.size()), 0);
  return bytes;
}

}  // namespace

TorchContents read_torch_archive(const ZipRange& range) { return ContentsReader(range).read(); }

bool begins_as_torch_save(const Reader& file) {
  const std::string bytes = first_bytes(file);
  return bytes.starts_with("PK\x03\x04") || bytes.starts_with("\x80");
}

Source open_torch_save(std::shared_ptr<Storage> storage, const std::string& file,
                       const std::string& path) {
  const auto opened = storage->open(file);
  const std::string first = first_bytes(*opened);
  require(!first.starts_with(old_magic), ExitCode::checkpoint, path,
          " is in the format that torch.save had before PyTorch 1.6; load it with torch.load and "
          "save it again");
  require(!first.starts_with("\x80"), ExitCode::checkpoint, path,
          " is a bare pickle; only archives of torch.save are read");
  const BlockReader reader(*opened);
  const ZipRange range{reader, 0, reader.size()};
  require(begins_as_zip(range), ExitCode::checkpoint, path, " is no file of torch.save");
  TorchContents contents = read_torch_archive(range);

  TorchTensors tensors;
  tensors.transformers = true;
  tensors.others = std::move(contents.others);
  for (auto& [keys, tensor] : contents.tensors) {
    ManifestEntry entry;
    entry.dtype = tensor.dtype;
    entry.shape = tensor.shape;
    if (tensor.unread.empty())
      entry.parts.push_back(part_of(tensor, whole_box(tensor.shape), file));
    tensors.tensors.push_back({keys.empty() ? std::vector<std::string>{"tensor"} : std::move(keys),
                               std::move(entry), std::move(tensor.unread)});
  }
  Source source{.format = "torch", .storage = std::move(storage), .folder = "", .path = path};
  source.manifest.files[file] = reader.size();
  add_torch_tensors(source, std::move(tensors));
  return source;
}

}  // namespace phalanx
