#include <algorithm>
#include <cstring>

#include "phalanx/base/error.h"
#include "phalanx/comm/shared_calls.h"

// Collectives that move bytes: each rank pulls what it needs out of its peers' memory.
namespace phalanx::shared {
namespace {

using std::memory_order_acquire;
using std::memory_order_release;

/// all_gather, broadcast, all_to_all and barrier.
class Pull : public Collected {
 public:
  using Collected::Collected;

  void start_gather(at::Tensor out, at::Tensor in, const Call& call) {
    const int64_t bytes = int64_t(in.nbytes());
    const auto window = find_window(out);
    Signature signature{.collective = Collective::all_gather,
                        .dtype = int8_t(in.scalar_type()),
                        .window = bool(window),
                        .elements = in.numel()};
    begin(signature, call, bytes * size());
    out_ = std::move(out);
    in_ = std::move(in);
    to_ = static_cast<char*>(out_.mutable_data_ptr());
    own_to_ = to_ + rank() * bytes;
    bytes_.assign(1, bytes);
    chunks_ = (bytes + chunk_bytes - 1) / chunk_bytes;
    if (window) {
      require(in_.const_data_ptr() == own_to_, ExitCode::usage, "rank ", rank(), " of group ",
              group_->name(), " gathers ", call.purpose, " of ", call.unit,
              " into a window from elsewhere; pass this rank's part of the window as the input");
      window_ = int64_t(window.id);
      auto& segment = group_->segment(window.id);
      use_ = ++segment.uses;
      ++segment.held;
      group_->slot(rank(), number_).location = {Place::segment, window.id, 0, -1};
    } else {
      set_input(in_);
    }
    publish();
  }

  void start_broadcast(at::Tensor inout, int root, const Call& call) {
    const int64_t bytes = int64_t(inout.nbytes());
    begin({.collective = Collective::broadcast,
           .dtype = int8_t(inout.scalar_type()),
           .root = root,
           .elements = inout.numel()},
          call, bytes);
    root_ = root;
    out_ = in_ = std::move(inout);
    to_ = static_cast<char*>(out_.mutable_data_ptr());
    bytes_.assign(1, bytes);
    chunks_ = (bytes + chunk_bytes - 1) / chunk_bytes;
    own_done_ = true;
    if (rank() == root) set_input(in_);
    publish();
  }

  void start_all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                        std::span<const int64_t> in_splits, const Call& call, int64_t row_bytes,
                        int64_t row_elements) {
    begin({.collective = Collective::all_to_all,
           .dtype = int8_t(in.scalar_type()),
           .elements = row_elements},
          call, int64_t(std::max(out.nbytes(), in.nbytes())));
    parts_ = true;
    out_ = std::move(out);
    in_ = std::move(in);
    to_ = static_cast<char*>(out_.mutable_data_ptr());
    part_bytes_ = part_size();
    int64_t offset = 0, largest = 0;
    for (int other = 0; other < size(); ++other) {
      bytes_.push_back(out_splits[other] * row_bytes);
      to_offset_.push_back(offset);
      offset += bytes_.back();
    }
    offset = 0;
    for (int other = 0; other < size(); ++other) {
      const int64_t bytes = in_splits[other] * row_bytes;
      table_.push_back(offset);
      table_.push_back(bytes);
      offset += bytes;
      if (other != rank()) largest = std::max(largest, bytes);
    }
    chunks_ = (largest + part_bytes_ - 1) / part_bytes_;
    own_to_ = to_ + to_offset_[rank()];
    const int64_t table = group_->reserve_ring(number_, int64_t(table_.size() * sizeof(int64_t)));
    std::memcpy(group_->control_data(rank()) + table, table_.data(),
                table_.size() * sizeof(int64_t));
    set_input(in_);
    own().location.table = table;
    publish();
  }

  void start_barrier(const Call& call) {
    begin({.collective = Collective::barrier}, call, 0);
    bytes_.assign(1, 0);
    own_done_ = true;
    publish();
  }

  bool advance() override {
    bool moved = stage_chunks();
    if (complete_) return moved;
    if (!own_done_) moved |= copy_own();
    for (int step = 1; step < size(); ++step) {
      const int other = (rank() + step) % size();
      if (!done_[other] && group_->arrived(other, number_)) moved |= pull(other);
    }
    if (int(done_.count()) == size()) {
      complete_call(received_);
      return true;
    }
    if (chunk_done_.any() && int((done_ | chunk_done_).count()) == size()) {
      chunk_done_.reset();
      ++next_chunk_;
      own().consumed.store(next_chunk_, memory_order_release);
      group_->wake_all();
      moved = true;
    }
    return moved;
  }

  void release() override {
    if (window_ >= 0 && !released_) group_->release_window(uint32_t(window_));
    released_ = true;
  }

  void wait_inputs() override {
    if (window_ < 0) return Collected::wait_inputs();
    const uint32_t id = uint32_t(window_);
    group_->wait_until([&] { return group_->window_free(id, use_); },
                       [&] {
                         Missing holders{.issued = true};
                         group_->window_free(id, use_, &holders.ranks);
                         return holders;
                       },
                       [&] { return "waiting for the release of " + describe(); }, deadline_);
  }

  ~Pull() override { Pull::release(); }

 private:
  Group::Found find_window(const at::Tensor& out) {
    auto found = group_->find(out.const_data_ptr(), int64_t(out.nbytes()));
    if (!found || !group_->segment(found.id).window) return {};
    const auto& segment = group_->segment(found.id);
    require(found.offset == 0 && int64_t(out.nbytes()) == segment.bytes * size(), ExitCode::usage,
            "a gather into part of a window of group ", group_->name(), " (", out.nbytes(),
            " bytes at offset ", found.offset, "); pass the whole window as the output");
    return found;
  }

  bool copy_own() {
    own_done_ = true;
    const char* from =
        static_cast<const char*>(in_.const_data_ptr()) + (parts_ ? table_[2 * size_t(rank())] : 0);
    const int64_t bytes = parts_ ? bytes_[size_t(rank())] : bytes_[0];
    if (bytes == 0 || from == own_to_) return false;
    std::memcpy(own_to_, from, bytes);
    return true;
  }

  void fill_chunk(int64_t index, char* to) override {
    const auto* from = static_cast<const char*>(in_.const_data_ptr());
    if (!parts_) {
      const int64_t begin = index * chunk_bytes;
      std::memcpy(to, from + begin, std::min(chunk_bytes, int64_t(in_.nbytes()) - begin));
      return;
    }
    for (int other = 0; other < size(); ++other) {
      const int64_t bytes = table_[2 * size_t(other) + 1], begin = index * part_bytes_;
      if (other != rank() && begin < bytes)
        std::memcpy(to + part_offset(rank(), other), from + table_[2 * size_t(other)] + begin,
                    std::min(part_bytes_, bytes - begin));
    }
  }

  bool pull(int other) {
    const Location& location = slot(other).location;
    int64_t bytes = parts_ ? bytes_[size_t(other)] : bytes_[0], from_offset = 0;
    if (root_ >= 0 && other != root_) bytes = 0;
    char* to = to_ + (parts_ ? to_offset_[size_t(other)] : root_ >= 0 ? 0 : other * bytes);
    if (parts_) from_offset = check_table(other, bytes, location);
    if (window_ >= 0) {
      if (int64_t(location.segment) != window_)
        group_->fail_group(text("ranks ", rank(), " and ", other, " of group ", group_->name(),
                                " gather into different windows in ", describe()));
    } else if (bytes > 0 && location.place == Place::chunks) {
      return pull_chunk(other, to, bytes);
    } else if (bytes > 0) {
      std::memcpy(to, group_->input_of(other, location) + from_offset, bytes);
    }
    done_[other] = true;
    received_ += bytes;
    return true;
  }

  bool pull_chunk(int other, char* to, int64_t bytes) {
    if (chunk_done_[other] || slot(other).produced.load(memory_order_acquire) <= next_chunk_)
      return false;
    const int64_t grain = parts_ ? part_bytes_ : chunk_bytes, begin = next_chunk_ * grain;
    std::memcpy(to + begin, chunk(other, next_chunk_) + (parts_ ? part_offset(other, rank()) : 0),
                std::min(grain, bytes - begin));
    if (begin + grain >= bytes) {
      done_[other] = true;
      received_ += bytes;
    } else {
      chunk_done_[other] = true;
    }
    return true;
  }

  int64_t check_table(int other, int64_t expected, const Location& location) {
    int64_t entry[2];
    std::memcpy(entry,
                group_->control_data(other) + location.table + rank() * int64_t(sizeof(entry)),
                sizeof(entry));
    if (entry[1] != expected)
      group_->fail_group(text("ranks of group ", group_->name(), " disagree in ", describe(),
                              ": rank ", other, " sends ", entry[1], " bytes to rank ", rank(),
                              ", which expects ", expected));
    return entry[0];
  }

  char *to_ = nullptr, *own_to_ = nullptr;
  bool parts_ = false, own_done_ = false, released_ = false;
  int root_ = -1;
  int64_t window_ = -1, received_ = 0, part_bytes_ = 0;
  uint32_t use_ = 0, next_chunk_ = 0;
  std::vector<int64_t> bytes_, to_offset_, table_;
  Ranks chunk_done_;
};

std::shared_ptr<Pull> make(std::shared_ptr<Group> group, const Call& call) {
  return std::make_shared<Pull>(std::move(group), call);
}

}  // namespace

std::shared_ptr<Pending> all_gather(std::shared_ptr<Group> group, at::Tensor out, at::Tensor in,
                                    const Call& call) {
  auto made = make(std::move(group), call);
  made->start_gather(std::move(out), std::move(in), call);
  return made;
}

std::shared_ptr<Pending> broadcast(std::shared_ptr<Group> group, at::Tensor inout, int root,
                                   const Call& call) {
  auto made = make(std::move(group), call);
  made->start_broadcast(std::move(inout), root, call);
  return made;
}

std::shared_ptr<Pending> all_to_all(std::shared_ptr<Group> group, at::Tensor out,
                                    std::span<const int64_t> out_splits, at::Tensor in,
                                    std::span<const int64_t> in_splits, const Call& call) {
  auto made = make(std::move(group), call);
  int64_t row_elements = 1;
  for (int64_t dim = 1; dim < in.dim(); ++dim) row_elements *= in.size(dim);
  const int64_t row_bytes = row_elements * int64_t(in.element_size());
  made->start_all_to_all(std::move(out), out_splits, std::move(in), in_splits, call, row_bytes,
                         row_elements);
  return made;
}

std::shared_ptr<Pending> barrier(std::shared_ptr<Group> group, const Call& call) {
  auto made = make(std::move(group), call);
  made->start_barrier(call);
  return made;
}

}  // namespace phalanx::shared
