#include "phalanx/comm/shared_calls.h"

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
  const Missing late = group_->missing(number_);
  if (!late.issued || !chunked_before_ || buffers_mine_) return late;
  const Missing before = group_->missing(chunked_before_);
  return before.ranks.empty() ? late : before;
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
  // All have dropped the call. A later one has the chunks, perhaps even the slot, from here on.
  if (group_->finished_by_peers(number_)) {
    staged_ = chunks_;
    return true;
  }
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
