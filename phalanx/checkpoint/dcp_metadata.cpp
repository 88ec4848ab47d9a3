#include "phalanx/checkpoint/dcp_metadata.h"

#include "phalanx/base/text.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/torch_types.h"

namespace phalanx {
namespace {

class MetadataWriter {
 public:
  std::string write(const std::vector<DcpItem>& items,
                    const std::vector<std::vector<DcpPlace>>& places) {
    make(metadata_, "Metadata");
    out_.empty_dict();
    out_.mark();
    out_.text("state_dict_metadata");
    dict(items, [&](const DcpItem& item, size_t) { tensor(item); });
    out_.text("planner_data");
    dict(items, [&](const DcpItem& item, size_t) {
      out_.mark();
      for (const auto& key : item.path) out_.text(key);
      out_.tuple();
    });
    out_.text("storage_data");
    out_.empty_dict();
    out_.mark();
    for (size_t i = 0; i < items.size(); ++i) storage(items[i], places[i]);
    out_.set_items();
    out_.text("storage_meta");
    out_.none();
    out_.text("version");
    out_.text("1.0.0");
    out_.text(dcp_buffers_field);
    out_.mark();
    for (const DcpItem& item : items)
      if (item.entry && item.entry->role == "buffer") out_.text(join(item.path, "."));
    out_.tuple();
    out_.set_items();
    out_.build();
    return out_.finish();
  }

 private:
  void make(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.make();
  }
  template <class WriteValue>
  void dict(const std::vector<DcpItem>& items, WriteValue&& write_value) {
    out_.empty_dict();
    out_.mark();
    for (size_t i = 0; i < items.size(); ++i) {
      out_.text(join(items[i].path, "."));
      write_value(items[i], i);
    }
    out_.set_items();
  }
  void size(const std::vector<int64_t>& numbers) {
    out_.global("torch", "Size");
    out_.integers(numbers);
    out_.tuple_of_one();
    out_.call();
  }
  void called(std::string_view module, std::string_view name) {  // with what is written before end
    out_.global(module, name);
    out_.mark();
  }

  void tensor(const DcpItem& item) {
    make(metadata_, "TensorStorageMetadata");
    out_.empty_dict();
    out_.mark();
    out_.text("properties");
    properties(item.dtype);
    out_.text("size");
    size(item.shape);
    out_.text("chunks");
    out_.empty_list();
    out_.mark();
    for (const Box& chunk : item.chunks) {
      make(metadata_, "ChunkStorageMetadata");
      out_.empty_dict();
      out_.mark();
      out_.text("offsets");
      size(chunk.offset);
      out_.text("sizes");
      size(chunk.size);
      out_.set_items();
      out_.build();
    }
    out_.append_items();
    out_.set_items();
    out_.build();
  }

  // dtype, layout, requires_grad, memory format (0: contiguous), pinned.
  void properties(Dtype dtype) {
    make(metadata_, "TensorProperties");
    out_.mark();
    out_.global("torch", torch_name(dtype));
    called("torch.serialization", "_get_layout");
    out_.text("torch.strided");
    out_.tuple();
    out_.call();
    out_.boolean(false);
    called(metadata_, "_MEM_FORMAT_ENCODING");
    out_.integer(0);
    out_.tuple();
    out_.call();
    out_.boolean(false);
    out_.tuple();
    out_.build();
  }

  void storage(const DcpItem& item, const std::vector<DcpPlace>& places) {
    for (size_t i = 0; i < places.size(); ++i) {
      make(metadata_, "MetadataIndex");
      out_.empty_dict();
      out_.mark();
      out_.text("fqn");
      out_.text(join(item.path, "."));
      out_.text("offset");
      size(item.chunks[i].offset);
      out_.text("index");
      out_.integer(static_cast<int64_t>(i));
      out_.set_items();
      out_.build();
      make("torch.distributed.checkpoint.filesystem", "_StorageInfo");
      out_.empty_dict();
      out_.mark();
      out_.text("relative_path");
      out_.text(places[i].file);
      out_.text("offset");
      out_.integer(places[i].offset);
      out_.text("length");
      out_.integer(places[i].bytes);
      out_.set_items();
      out_.build();
    }
  }

  static constexpr std::string_view metadata_ = "torch.distributed.checkpoint.metadata";
  PickleWriter out_;
};

}  // namespace

std::string dcp_metadata(const std::vector<DcpItem>& items,
                         const std::vector<std::vector<DcpPlace>>& places) {
  return MetadataWriter().write(items, places);
}

}  // namespace phalanx
