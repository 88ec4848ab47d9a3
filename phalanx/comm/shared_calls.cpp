#include "phalanx/comm/shared_calls.h"

#include <algorithm>

namespace phalanx::shared {

using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;

void Collected::begin(const Signature& signature, const Call& call, int64_t bytes) {
  number_ = group_->begin(signature, call);
  done_[rank()] = true;
  record_ = group_->history.begin(group_->name(), number_, name(signature.collective), call.unit,
                                  call.purpose, bytes);
}

void Collected::set_input(const at::Tensor& in) {
  group_->place(number_, in);
  place_ = own().location;
  if (place_.place != Place::chunks) return;
  own().produced.store(counted(0), memory_order_relaxed);
  chunked_ = true;
  chunked_before_ = group_->last_chunked;
  group_->last_chunked = number_;
}

void Collected::publish() {
  group_->publish(number_);
  group_->add(shared_from_this());
}

// Nobody waits for a dropped call: its peers must not wait for it to read, either.
Collected::~Collected() {
  if (complete_ || number_ == 0 || own().published.load(memory_order_relaxed) != number_) return;
  own().consumed.store(all_done, memory_order_relaxed);
  own().finished.store(number_, memory_order_release);
  group_->wake_all();
}

void Collected::complete_call(int64_t received_bytes) {
  own().consumed.store(all_done, memory_order_relaxed);
  own().finished.store(number_, memory_order_release);
  group_->wake_all();
  finish(received_bytes);
}

Missing Collected::missing() const {
  Missing late;
  for (int other = 0; other < size(); ++other)
    if (!done_[other] &&
        group_->slot(other, number_).published.load(memory_order_acquire) < number_)
      late.ranks.push_back(other);
  if (!late.ranks.empty()) return late;
  late.issued = true;
  if (chunked_before_ && !buffers_mine_) late.ranks = behind(chunked_before_);
  if (late.ranks.empty()) late.ranks = behind(number_);
  return late;
}

// In the order "produce chunk 0, reduce it, read it, produce chunk 1 ..." every step needs earlier
// ones only. So whoever has the earliest step to do could do it, while the others wait for it.
std::vector<int> Collected::behind(uint64_t number) const {
  std::vector<int> ranks;
  uint64_t earliest = UINT64_MAX;
  for (int other = 0; other < size(); ++other) {
    const Slot& slot = group_->slot(other, number);
    if (other == rank() || slot.published.load(memory_order_acquire) != number) continue;
    const uint64_t produced = slot.produced.load(memory_order_acquire);
    const uint64_t reduced = slot.reduced.load(memory_order_acquire);
    const uint64_t consumed = slot.consumed.load(memory_order_acquire);
    if (produced == all_done && slot.finished.load(memory_order_acquire) >= number) continue;
    const uint64_t step = std::min({3 * produced, 3 * reduced + 1, 3 * consumed + 2});
    if (step < earliest) ranks.clear();
    earliest = std::min(step, earliest);
    if (step == earliest) ranks.push_back(other);
  }
  return ranks;
}

bool Collected::may_fill(uint32_t index) {
  if (!buffers_mine_) {
    if (chunked_before_ && !group_->finished_by_peers(chunked_before_)) return false;
    buffers_mine_ = true;
  }
  if (index < uint32_t(chunk_depth)) return true;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    Slot& reader = slot(other);
    if (reader.published.load(memory_order_acquire) < number_ ||
        reader.consumed.load(memory_order_acquire) < index - chunk_depth + 1)
      return false;
  }
  return true;
}

bool Collected::stage_chunks() {
  if (!chunked_ || staged_ == chunks_) return false;
  bool moved = false;
  while (staged_ < chunks_ && may_fill(uint32_t(staged_))) {
    fill_chunk(staged_, chunk(rank(), staged_));
    ++staged_;
    own().produced.store(counted(staged_), memory_order_release);
    group_->wake_all();
    moved = true;
  }
  return moved;
}

void Collected::wait_inputs() {
  if (place_.place == Place::nothing || place_.place == Place::ring) return;
  auto ready = [this] {
    if (!complete_ || owes_peers()) advance();
    return chunked_ ? staged_ == chunks_ : group_->finished_by_peers(number_);
  };
  group_->wait_until(
      ready, [this] { return missing(); },
      [this] { return "waiting for the readers of " + describe(); }, deadline_);
}

}  // namespace phalanx::shared
