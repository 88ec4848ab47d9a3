#include "phalanx/checkpoint/full.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/fit.h"
#include "phalanx/checkpoint/huggingface_writer.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/checkpoint/verify.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

// A box of a tensor that a rank holds, and in which of its entries.
struct Held {
  int rank;
  size_t entry, part;
  Box box;
};

// A tensor of the file, and who sends or wants which of its boxes.
struct Whole {
  Dtype dtype;  // in the file, and on the way
  std::vector<int64_t> shape;
  std::vector<Held> held;
  const ManifestEntry* saved = nullptr;  // to be loaded
};

// A box of one tensor, contiguous in its file, and where its bytes lie in the buffer of a round.
struct Slice {
  const Whole* tensor;
  Box box;
  int64_t offset;
};

// What goes through the buffer at once; of one type, so that all of it is aligned.
struct Round {
  Dtype dtype;
  std::vector<Slice> slices;
  int64_t bytes = 0;
};

std::vector<Round> rounds_of(const std::vector<const Whole*>& tensors, int64_t buffer_bytes) {
  std::vector<Round> rounds;
  for (const Whole* tensor : tensors) {
    const int64_t width = size_of(tensor->dtype), elements = element_count(tensor->shape);
    for (int64_t begin = 0; begin < elements;) {
      if (rounds.empty() || rounds.back().dtype != tensor->dtype ||
          rounds.back().bytes + width > buffer_bytes)
        rounds.push_back({tensor->dtype, {}, 0});
      Round& round = rounds.back();
      const int64_t end = std::min(elements, begin + (buffer_bytes - round.bytes) / width);
      for (Box& box : boxes_of_range(tensor->shape, begin, end)) {
        const int64_t bytes = element_count(box.size) * width;
        round.slices.push_back({tensor, std::move(box), round.bytes});
        round.bytes += bytes;
      }
      begin = end;
    }
  }
  return rounds;
}

// The pieces of a round that lie on `rank`, in an order that both ends know.
template <class Use>
int64_t for_each_piece_of(const Round& round, int rank, const Use& use) {
  int64_t bytes = 0;
  for (const Slice& slice : round.slices)
    for (const Held& held : slice.tensor->held) {
      if (held.rank != rank) continue;
      const auto common = intersection(slice.box, held.box);
      if (!common) continue;
      use(slice, held, *common, bytes);
      bytes += element_count(common->size) * size_of(round.dtype);
    }
  return bytes;
}

int64_t bytes_of(const Round& round, int rank) {
  return for_each_piece_of(round, rank, [](const Slice&, const Held&, const Box&, int64_t) {});
}

// Moves rounds between rank 0's buffer of whole slices and the entries of all ranks.
class Mover {
 public:
  Mover(Communicator& world, std::span<const StateEntry> entries, int64_t buffer_bytes)
      : world_(world), entries_(entries) {
    if (world.rank() == 0) slices_ = at::empty({buffer_bytes}, at::kByte);
    if (world.size() > 1) packed_ = at::empty({buffer_bytes}, at::kByte);
  }

  at::Tensor slice(const Round& round, const Slice& slice) const {
    return elements(slices_, round.dtype, slice.offset, slice.box.size);
  }
  const void* data() const { return slices_.const_data_ptr(); }

  void collect(const Round& round) { move(round, true); }
  void distribute(const Round& round) { move(round, false); }

 private:
  void move(const Round& round, bool to_first) {
    const bool first = world_.rank() == 0;
    copy_own(round, to_first);
    for (int rank = 1; rank < world_.size(); ++rank) {
      const int64_t bytes = bytes_of(round, rank);
      if (bytes == 0 || (!first && world_.rank() != rank)) continue;
      const int other = first ? rank : 0;
      if (first == to_first) {
        receive(bytes, other);
        pack(round, rank, false, !first);
      } else {
        pack(round, rank, true, !first);
        send(bytes, other);
      }
    }
  }

  static at::Tensor elements(const at::Tensor& buffer, Dtype dtype, int64_t offset,
                             const std::vector<int64_t>& shape) {
    return buffer.narrow(0, offset, element_count(shape) * size_of(dtype))
        .view(scalar_type(dtype))
        .view(shape);
  }
  at::Tensor own(const Held& held, const Box& box) const {
    return view_of(entries_[held.entry].parts[held.part].local.detach(), held.box, box);
  }
  at::Tensor whole(const Round& round, const Slice& place, const Box& box) const {
    return view_of(slice(round, place), place.box, box);
  }

  // Rank 0's own pieces, which need no message.
  void copy_own(const Round& round, bool to_slices) {
    if (world_.rank() != 0) return;
    for_each_piece_of(round, 0, [&](const Slice& place, const Held& held, const Box& box, int64_t) {
      at::Tensor in_slice = whole(round, place, box), mine = own(held, box);
      to_slices ? in_slice.copy_(mine) : mine.copy_(in_slice);
    });
  }

  // Between `packed_` and this rank's entries, or rank 0's slices.
  void pack(const Round& round, int rank, bool into, bool entries) {
    for_each_piece_of(round, rank,
                      [&](const Slice& place, const Held& held, const Box& box, int64_t offset) {
                        at::Tensor packed = elements(packed_, round.dtype, offset, box.size);
                        at::Tensor other = entries ? own(held, box) : whole(round, place, box);
                        into ? packed.copy_(other) : other.copy_(packed);
                      });
  }

  void send(int64_t bytes, int to) {
    const Handle handle =
        world_.send(packed_.narrow(0, 0, bytes), to, 0, {"full state", "checkpoint"});
    handle.wait();
    handle.wait_inputs();
  }
  void receive(int64_t bytes, int from) {
    world_.receive(packed_.narrow(0, 0, bytes), from, 0, {"full state", "checkpoint"}).wait();
  }

  Communicator& world_;
  std::span<const StateEntry> entries_;
  at::Tensor slices_;  // rank 0: the round as it lies in the file
  at::Tensor packed_;  // what is sent or received
};

void check_buffer(int64_t buffer_bytes) {
  require(buffer_bytes >= 8, ExitCode::usage, "a buffer of ", buffer_bytes,
          " bytes is too small for one element; give at least 8");
}

// Notes which boxes a rank wants, from its describe_entries().
void hold(std::map<TensorKey, Whole>& tensors, int rank, const std::string& description) {
  const auto entries = nlohmann::json::from_cbor(description);
  for (size_t entry = 0; entry < entries.size(); ++entry) {
    Whole& tensor = tensors.at({entries[entry][0], entries[entry][1]});
    for (size_t part = 0; part < entries[entry][4].size(); ++part) {
      const auto& box = entries[entry][4][part];
      tensor.held.push_back({rank, entry, part, {box[0], box[1]}});
    }
  }
}

// Opens what lies at `path` if it has all that is wanted, and nothing else of those roles.
Source open_fitting(const std::string& path, const Signatures& wanted,
                    std::map<TensorKey, Whole>& tensors) {
  Source source = open_source(path);
  std::set<std::string> roles, buffers;
  for (const auto& [key, signature] : wanted) {
    roles.insert(key.second);
    if (key.second == "buffer") buffers.insert(key.first);
  }
  const auto by_key = saved_tensors(source.manifest, buffers);
  Signatures saved;
  for (const auto& [key, entry] : by_key)
    if (roles.contains(key.second)) saved[key] = {entry->dtype, entry->shape};
  const Fit fit = compare(saved, wanted, {});
  require(fit.misfit.empty(), ExitCode::checkpoint, source.path, " does not fit: ", fit.misfit);
  for (const auto& [key, entry] : by_key)
    if (const auto place = tensors.find(key); place != tensors.end()) place->second.saved = entry;
  return source;
}

// The file's tensors in its order, and in `tensors` by name who sends which boxes of them.
std::vector<TensorInfo> plan_file(const SavePlan& plan, std::optional<Dtype> dtype,
                                  std::map<std::string, Whole>& tensors) {
  std::vector<Whole*> by_entry;
  std::vector<TensorInfo> infos;
  for (const ManifestEntry& entry : plan.entries) {
    const std::string name = part_name(entry, whole_box(entry.shape));
    const bool converts = dtype && is_floating_point(entry.dtype);
    tensors[name] = {converts ? *dtype : entry.dtype, entry.shape, {}};
    by_entry.push_back(&tensors[name]);
    infos.push_back({name, tensors[name].dtype, entry.shape, 0, 0});
  }
  for (const PlannedPart& part : plan.parts)
    by_entry[part.entry]->held.push_back({part.writer, part.own_entry, part.own_part,
                                          plan.entries[part.entry].parts[part.part].box});
  wide_first(infos);
  return infos;
}

}  // namespace

void save_full(Communicator& world, std::span<const StateEntry> entries, const std::string& path,
               const FullOptions& options) {
  at::NoGradGuard no_grad;
  check_buffer(options.buffer_bytes);
  const SavePlan plan = plan_save(agree(world, "plan", [&] { return describe_entries(entries); }));
  std::map<std::string, Whole> tensors;
  const std::vector<TensorInfo> infos = plan_file(plan, options.dtype, tensors);
  std::vector<const Whole*> order;
  for (const TensorInfo& info : infos) order.push_back(&tensors.at(info.name));
  std::unique_ptr<HuggingFaceWriter> writer;
  agree_with_first(world, "folder", [&] {
    writer = std::make_unique<HuggingFaceWriter>(path, infos, options.max_file_bytes);
    return std::string();
  });
  Mover mover(world, entries, options.buffer_bytes);
  for (const Round& round : rounds_of(order, options.buffer_bytes)) {
    mover.collect(round);
    const auto write = [&] {
      writer->write(mover.data(), round.bytes);
      return std::string();
    };
    agree_with_first(world, "write", write, disk_deadline);
  }
  const auto publish = [&] {
    writer->finish(options.config);
    return std::string();
  };
  agree_with_first(world, "publish", publish, disk_deadline);
}

void load_full(Communicator& world, const std::string& path, std::span<const StateEntry> entries,
               int64_t buffer_bytes) {
  at::NoGradGuard no_grad;
  check_buffer(buffer_bytes);
  const auto described = agree(world, "wanted", [&] { return describe_entries(entries); });
  const Signatures wanted = wanted_by_all(described);
  std::map<TensorKey, Whole> tensors;
  std::vector<const Whole*> order;
  for (const auto& [key, signature] : wanted) {
    tensors[key] = {signature.dtype, signature.shape, {}, nullptr};
    order.push_back(&tensors[key]);
  }
  for (int rank = 0; rank < world.size(); ++rank) hold(tensors, rank, described[size_t(rank)]);

  std::optional<Source> source;  // rank 0
  const auto open = [&] {
    source = open_fitting(path, wanted, tensors);
    return std::string();
  };
  agree_with_first(world, "fit", open, disk_deadline);
  Mover mover(world, entries, buffer_bytes);
  for (const Round& round : rounds_of(order, buffer_bytes)) {
    const auto read = [&] {
      for (const Slice& slice : round.slices)
        read_box(*source, *slice.tensor->saved, slice.box, mover.slice(round, slice));
      return std::string();
    };
    agree_with_first(world, "read", read, disk_deadline);
    mover.distribute(round);
  }
  agree(world, "loaded", [] { return std::string(); });
}

}  // namespace phalanx
