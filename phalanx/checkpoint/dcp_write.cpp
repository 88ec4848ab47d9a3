#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <set>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/dcp.h"
#include "phalanx/checkpoint/dcp_metadata.h"
#include "phalanx/checkpoint/new_folder.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/zip.h"
#include "phalanx/device/dtype.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {
namespace {

constexpr int64_t most_bytes = 64 << 20;  // of a chunk, which is held as a whole

std::vector<std::string> path_of(const ManifestEntry& entry) {
  // As in a state_dict() of PyTorch's, where buffers lie among the parameters.
  if (entry.role == "parameter" || entry.role == "buffer") return {"model", entry.name};
  if (entry.role == "other") return {"other", entry.name};
  return {"optimizer", "state", entry.name,
          entry.role == "momentum" ? "momentum_buffer" : entry.role};
}

// What AdamW counts: not the run's steps, of which some may have been skipped.
int64_t updates_of(const RunState& run) {
  const auto saved = run.values.find("updates");
  const auto* updates = saved == run.values.end() ? nullptr : std::get_if<int64_t>(&saved->second);
  return updates ? *updates : run.step;
}

std::vector<DcpItem> items_of(const Source& source, const ExportOptions& options) {
  std::vector<DcpItem> items;
  std::set<std::string> with_step;
  for (const auto& entry : source.manifest.entries)
    if (entry.role == "step") with_step.insert(entry.name);
  for (const auto& entry : source.manifest.entries) {
    DcpItem item{path_of(entry), exported_dtype(entry, options), entry.shape, {}, &entry};
    const bool converts = item.dtype != entry.dtype;  // then a chunk is held twice
    const int64_t width = size_of(item.dtype) + (converts ? size_of(entry.dtype) : 0);
    for_each_slice(whole_box(entry.shape), most_bytes / width,
                   [&](const Box& chunk) { item.chunks.push_back(chunk); });
    items.push_back(std::move(item));
    if (entry.role == "exp_avg" && with_step.insert(entry.name).second)  // AdamW reads it
      items.push_back({{"optimizer", "state", entry.name, "step"},
                       Dtype::float32,
                       {},
                       {Box{}},
                       nullptr,
                       updates_of(source.manifest.run)});
  }
  return items;
}

// torch.save's pickle of a row-major tensor whose elements are data/0.
std::string tensor_pickle(Dtype dtype, const std::vector<int64_t>& shape) {
  PickleWriter out;
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.mark();
  out.mark();
  out.text("storage");
  out.global("torch", row_of(dtype).storage);
  out.text("0");
  out.text("cpu");
  out.integer(element_count(shape));
  out.tuple();
  out.persistent();
  out.integer(0);
  out.integers(shape);
  out.integers(row_major_strides(shape));
  out.boolean(false);
  out.global("collections", "OrderedDict");
  out.empty_tuple();
  out.call();
  out.tuple();
  out.call();
  return out.finish();
}

void write_archive(Writer& out, Dtype dtype, const std::vector<int64_t>& shape,
                   const at::Tensor& data) {
  ZipWriter zip(out);
  const auto add = [&](const std::string& name, const std::string& bytes) {
    zip.add("archive/" + name, bytes.data(), static_cast<int64_t>(bytes.size()));
  };
  add("data.pkl", tensor_pickle(dtype, shape));
  add("byteorder", "little");
  zip.add("archive/data/0", data.const_data_ptr(), static_cast<int64_t>(data.nbytes()));
  add("version", "3\n");
  zip.finish();
}

at::Tensor values_of(const Source& source, const DcpItem& item, const Box& chunk) {
  if (!item.entry) return at::full(chunk.size, item.step, scalar_type(item.dtype));
  const at::Tensor values = at::empty(chunk.size, scalar_type(item.entry->dtype));
  read_box(source, *item.entry, chunk, values);
  return values.to(scalar_type(item.dtype));
}

// The files that hold the chunks: a new one when the last is full.
class DataFiles {
 public:
  DataFiles(Storage& storage, int64_t most) : storage_(storage), most_(most) {}

  DcpPlace write(const DcpItem& item, const Box& chunk, const at::Tensor& values) {
    if (file_ && file_->bytes() > 0 && file_->bytes() + int64_t(values.nbytes()) > most_) close();
    if (!file_) {
      name_ = text("__0_", files_++, ".distcp");
      file_ = storage_.create(name_);
    }
    const int64_t begin = file_->bytes();
    write_archive(*file_, item.dtype, chunk.size, values);
    bytes_ += static_cast<int64_t>(values.nbytes());
    return {name_, begin, file_->bytes() - begin};
  }
  void close() {
    if (file_) file_->finish();
    file_.reset();
  }
  int64_t files() const { return files_; }
  int64_t bytes() const { return bytes_; }  // of elements

 private:
  Storage& storage_;
  int64_t most_, files_ = 0, bytes_ = 0;
  std::string name_;
  std::unique_ptr<Writer> file_;
};

}  // namespace

Exported export_dcp(const Source& source, const std::string& path, const ExportOptions& options) {
  at::NoGradGuard no_grad;
  const std::vector<DcpItem> items = items_of(source, options);
  require(!items.empty(), ExitCode::checkpoint, source.path, " holds no tensors to export");
  NewFolder folder(path);
  require_hashes(source);
  DataFiles files(folder.storage(), options.max_file_bytes);
  std::vector<std::vector<DcpPlace>> places;  // of each item's chunks
  for (const DcpItem& item : items) {
    places.emplace_back();
    for (const Box& chunk : item.chunks) {
      places.back().push_back(files.write(item, chunk, values_of(source, item, chunk)));
    }
  }
  files.close();
  const std::string metadata = dcp_metadata(items, places);
  const auto out = folder.storage().create(".metadata");
  out->write(metadata.data(), static_cast<int64_t>(metadata.size()));
  out->finish();
  folder.finish();
  return {static_cast<int64_t>(items.size()), files.bytes(), files.files(),
          main_dtype(source, options)};
}

}  // namespace phalanx
