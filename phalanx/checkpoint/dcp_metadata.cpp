#include "phalanx/checkpoint/dcp_metadata.h"

#include "phalanx/base/text.h"
#include "phalanx/checkpoint/pickle.h"

namespace phalanx {
namespace {

class MetadataWriter {
 public:
  std::string write(const std::vector<DcpItem>& items,
                    const std::vector<std::vector<DcpPlace>>& places) {
    object(metadata_, "Metadata", [&] {
      out_.text("state_dict_metadata");
      dict(items, [&](const DcpItem& item) { tensor(item); });
      out_.text("planner_data");
      dict(items, [&](const DcpItem& item) {
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
    });
    return out_.finish();
  }

 private:
  void make(std::string_view module, std::string_view name) {
    out_.global(module, name);
    out_.empty_tuple();
    out_.make();
  }
  // With the names and values that `write_fields` writes one after another.
  template <class WriteFields>
  void object(std::string_view module, std::string_view name, const WriteFields& write_fields) {
    make(module, name);
    out_.empty_dict();
    out_.mark();
    write_fields();
    out_.set_items();
    out_.build();
  }
  template <class WriteValue>
  void dict(const std::vector<DcpItem>& items, WriteValue&& write_value) {
    out_.empty_dict();
    out_.mark();
    for (const DcpItem& item : items) {
      out_.text(join(item.path, "."));
      write_value(item);
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
    object(metadata_, "TensorStorageMetadata", [&] {
      out_.text("properties");
      properties(item.dtype);
      out_.text("size");
      size(item.shape);
      out_.text("chunks");
      out_.empty_list();
      out_.mark();
      for (const Box& chunk : item.chunks)
        object(metadata_, "ChunkStorageMetadata", [&] {
          out_.text("offsets");
          size(chunk.offset);
          out_.text("sizes");
          size(chunk.size);
        });
      out_.append_items();
    });
  }

  // dtype, layout, requires_grad, memory format (0: contiguous), pinned.
  void properties(Dtype dtype) {
    make(metadata_, "TensorProperties");
    out_.mark();
    out_.global("torch", name(dtype));
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
      object(metadata_, "MetadataIndex", [&] {
        out_.text("fqn");
        out_.text(join(item.path, "."));
        out_.text("offset");
        size(item.chunks[i].offset);
        out_.text("index");
        out_.integer(static_cast<int64_t>(i));
      });
      object("torch.distributed.checkpoint.filesystem", "_StorageInfo", [&] {
        out_.text("relative_path");
        out_.text(places[i].file);
        out_.text("offset");
        out_.integer(places[i].offset);
        out_.text("length");
        out_.integer(places[i].bytes);
      });
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
