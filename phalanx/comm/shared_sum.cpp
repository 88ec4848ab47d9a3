#include <algorithm>
#include <array>
#include <cstring>

#include "phalanx/comm/reduce.h"
#include "phalanx/comm/shared_calls.h"

// Collectives that reduce. Every sum runs over the ranks' memory in rank order.
namespace phalanx::shared {
namespace {

using std::memory_order_acquire;
using std::memory_order_release;

/// reduce_scatter, and all_reduce of a few bytes (each rank sums everything).
class Sum : public Collected {
 public:
  using Collected::Collected;

  void start(at::Tensor out, at::Tensor in, Op op, const Call& call, bool accumulate,
             bool scattered) {
    bytes_ = int64_t(out.nbytes());
    begin({.collective = scattered ? Collective::reduce_scatter : Collective::all_reduce,
           .dtype = int8_t(in.scalar_type()),
           .op = uint8_t(op),
           .elements = out.numel()},
          call, int64_t(in.nbytes()));
    op_ = op;
    accumulate_ = accumulate;
    scattered_ = scattered;
    out_ = std::move(out);
    in_ = std::move(in);
    part_bytes_ = scattered ? part_size() : chunk_bytes;
    chunks_ = (bytes_ + part_bytes_ - 1) / part_bytes_;
    if (scattered)
      set_input(in_);
    else
      group_->stage(number_, in_.const_data_ptr(), bytes_);  // out overwrites in
    publish();
  }

  bool advance() override {
    bool moved = stage_chunks();
    if (complete_) return moved;
    for (int other = 0; other < size(); ++other)
      if (!done_[other] && group_->arrived(other, number_)) {
        done_[other] = true;
        whole_ &= slot(other).location.place != Place::chunks;
      }
    if (int(done_.count()) < size()) return moved;
    if (whole_) {
      sum(0, bytes_);
      next_ = chunks_;
    }
    while (next_ < chunks_ && chunk_ready()) {
      const int64_t begin = next_ * part_bytes_;
      sum(begin, std::min(part_bytes_, bytes_ - begin));
      ++next_;
      own().consumed.store(uint32_t(next_), memory_order_release);
      group_->wake_all();
      moved = true;
      if (next_ < chunks_) stage_chunks();
    }
    if (next_ < chunks_) return moved;
    complete_call(bytes_ * (size() - 1));
    return true;
  }

 private:
  bool chunk_ready() {
    for (int other = 0; other < size(); ++other)
      if (other != rank() && slot(other).location.place == Place::chunks &&
          slot(other).produced.load(memory_order_acquire) <= next_)
        return false;
    return true;
  }

  void sum(int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    const int64_t offset = scattered_ ? rank() * bytes_ : 0;
    std::array<const void*, max_ranks> inputs;
    for (int other = 0; other < size(); ++other) {
      const Location& location = slot(other).location;
      if (other == rank())
        inputs[other] = static_cast<const char*>(in_.const_data_ptr()) + offset + begin;
      else if (location.place == Place::chunks)
        inputs[other] = chunk(other, next_) + (scattered_ ? part_offset(other, rank()) : 0);
      else
        inputs[other] = group_->input_of(other, location) + offset + begin;
    }
    reduce(static_cast<char*>(out_.mutable_data_ptr()) + begin, inputs.data(), size(),
           bytes / int64_t(out_.element_size()), out_.scalar_type(), op_, accumulate_);
  }

  void fill_chunk(int64_t index, char* to) override {
    const int64_t begin = index * part_bytes_, bytes = std::min(part_bytes_, bytes_ - begin);
    const auto* from = static_cast<const char*>(in_.const_data_ptr());
    for (int other = 0; other < size(); ++other)
      if (other != rank())
        std::memcpy(to + part_offset(rank(), other), from + other * bytes_ + begin, bytes);
  }

  Op op_ = Op::sum;
  bool accumulate_ = false, scattered_ = true, whole_ = true;
  int64_t bytes_ = 0, part_bytes_ = 0, next_ = 0;
};

/// all_reduce of more than a few bytes, chunk by chunk: sum this rank's part of the chunk in place,
/// then copy the others' parts. Where every rank's tensor is symmetric there is one chunk, the
/// whole.
class SumAndShare : public Collected {
 public:
  using Collected::Collected;

  void start(at::Tensor inout, Op op, const Call& call) {
    bytes_ = int64_t(inout.nbytes());
    begin({.collective = Collective::all_reduce,
           .dtype = int8_t(inout.scalar_type()),
           .op = uint8_t(op),
           .elements = inout.numel()},
          call, bytes_);
    op_ = op;
    out_ = in_ = std::move(inout);
    data_ = static_cast<char*>(out_.mutable_data_ptr());
    set_input(in_);
    chunks_ = INT64_MAX;
    own().produced.store(0, std::memory_order_relaxed);
    own().reduced.store(0, std::memory_order_relaxed);
    publish();
  }

  bool owes_peers() const override { return !complete_; }

  bool advance() override {
    if (complete_) return false;
    bool moved = false;
    if (!all_arrived()) return false;
    for (bool again = true; again;) {
      again = stage();
      again |= sum_own_part();
      again |= copy_parts();
      moved |= again;
    }
    if (copied_ < chunks_) return moved;
    if (!finished_) {  // peers may still read the sums out of this rank's memory
      finished_ = true;
      own().consumed.store(all_done, memory_order_release);
      own().finished.store(number_, memory_order_release);
      group_->wake_all();
    }
    if (place_.place == Place::segment && !group_->finished_by_peers(number_)) return moved;
    finish(received_);
    return true;
  }

  void wait_inputs() override { wait(); }

 private:
  bool all_arrived() {
    if (arrived_) return true;
    for (int other = 0; other < size(); ++other)
      if (!done_[other] && group_->arrived(other, number_)) done_[other] = true;
    if (int(done_.count()) < size()) return false;
    bool direct = true;
    for (int other = 0; other < size(); ++other)
      direct &= slot(other).location.place != Place::chunks;
    grain_ = direct ? bytes_ : chunk_bytes;
    chunks_ = direct ? 1 : (bytes_ + grain_ - 1) / grain_;
    return arrived_ = true;
  }

  // A rank's memory of chunk `index`: its tensor, or a copy in its staging memory.
  char* place_of(int other, int64_t index) {
    const Location& location = slot(other).location;
    if (location.place == Place::chunks) return chunk(other, index);
    return const_cast<char*>(group_->input_of(other, location)) + index * grain_;
  }
  int64_t length(int64_t index) const { return std::min(grain_, bytes_ - index * grain_); }
  int64_t part(int other, int64_t bytes) const { return sum_part(other, size(), bytes); }
  int64_t part_end(int other, int64_t bytes) const { return sum_part(other + 1, size(), bytes); }

  bool stage() {
    if (staged_ == chunks_) return false;
    if (place_.place == Place::chunks) {
      if (!may_fill(uint32_t(staged_))) return false;
      fill_chunk(staged_, chunk(rank(), staged_));
    }
    ++staged_;
    own().produced.store(counted(staged_), memory_order_release);
    group_->wake_all();
    return true;
  }

  bool sum_own_part() {
    if (summed_ == staged_) return false;
    for (int other = 0; other < size(); ++other)
      if (slot(other).produced.load(memory_order_acquire) <= summed_) return false;
    const int64_t total = length(summed_), begin = part(rank(), total);
    const int64_t bytes = part_end(rank(), total) - begin;
    if (bytes > 0) {
      std::array<const void*, max_ranks> inputs;
      for (int other = 0; other < size(); ++other) inputs[other] = place_of(other, summed_) + begin;
      char* to = place_of(rank(), summed_) + begin;
      reduce(to, inputs.data(), size(), bytes / int64_t(out_.element_size()), out_.scalar_type(),
             op_, false);
      char* home = data_ + summed_ * grain_ + begin;
      if (home != to) std::memcpy(home, to, bytes);
      received_ += bytes * (size() - 1);
    }
    ++summed_;
    own().reduced.store(counted(summed_), memory_order_release);
    group_->wake_all();
    return true;
  }

  bool copy_parts() {
    if (copied_ == summed_) return false;
    bool moved = false;
    const int64_t total = length(copied_);
    for (int step = 1; step < size(); ++step) {
      const int other = (rank() + step) % size();
      if (chunk_done_[other] || slot(other).reduced.load(memory_order_acquire) <= copied_) continue;
      const int64_t begin = part(other, total), bytes = part_end(other, total) - begin;
      if (bytes > 0)
        std::memcpy(data_ + copied_ * grain_ + begin, place_of(other, copied_) + begin, bytes);
      received_ += std::max<int64_t>(0, bytes);
      chunk_done_[other] = true;
      moved = true;
    }
    if (int(chunk_done_.count()) < size() - 1) return moved;
    chunk_done_.reset();
    ++copied_;
    own().consumed.store(uint32_t(copied_), memory_order_release);
    group_->wake_all();
    return true;
  }

  void fill_chunk(int64_t index, char* to) override {
    std::memcpy(to, data_ + index * grain_, length(index));
  }

  Op op_ = Op::sum;
  char* data_ = nullptr;
  bool arrived_ = false, finished_ = false;
  int64_t bytes_ = 0, grain_ = 0, summed_ = 0, copied_ = 0, received_ = 0;
  Ranks chunk_done_;
};

}  // namespace

std::shared_ptr<Pending> reduce_scatter(std::shared_ptr<Group> group, at::Tensor out, at::Tensor in,
                                        Op op, const Call& call, bool accumulate) {
  auto made = std::make_shared<Sum>(std::move(group), call);
  made->start(std::move(out), std::move(in), op, call, accumulate, true);
  return made;
}

std::shared_ptr<Pending> all_reduce(std::shared_ptr<Group> group, at::Tensor inout, Op op,
                                    const Call& call) {
  if (int64_t(inout.nbytes()) <= direct_sum_bytes) {
    auto made = std::make_shared<Sum>(std::move(group), call);
    made->start(inout, inout, op, call, false, false);
    return made;
  }
  auto made = std::make_shared<SumAndShare>(std::move(group), call);
  made->start(std::move(inout), op, call);
  return made;
}

}  // namespace phalanx::shared
