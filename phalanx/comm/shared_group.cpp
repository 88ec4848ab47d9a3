#include "phalanx/comm/shared_group.h"

#include <algorithm>
#include <cstring>

#include "phalanx/base/error.h"
#include "phalanx/comm/memory.h"

namespace phalanx::shared {
namespace {

using Clock = std::chrono::steady_clock;
using std::memory_order_acquire;
using std::memory_order_relaxed;
using std::memory_order_release;
}  // namespace

SharedCall::SharedCall(std::shared_ptr<Group> group, const Call& call)
    : group_(std::move(group)),
      purpose_(call.purpose),
      deadline_(call.deadline.count() ? call.deadline : group_->deadline()) {}

SharedCall::~SharedCall() { group_->remove(this); }

void SharedCall::wait() {
  if (complete_) return;
  group_->wait_until([this] { return poll(); }, [this] { return missing(); },
                     [this] { return describe(); }, deadline_);
}

void SharedCall::finish(int64_t received_bytes) {
  complete_ = true;
  if (received_bytes) group_->ledger.add(purpose_, received_bytes);
  group_->history.end(record_, CallRecord::State::complete);
}

Group::Group(std::string name, std::string key, std::vector<int> world_ranks, int rank,
             std::shared_ptr<Host> host, std::chrono::milliseconds deadline, Ledger& ledger_,
             CallHistory& history_)
    : sent(world_ranks.size()),
      taken(world_ranks.size()),
      ledger(ledger_, name),
      history(history_),
      name_(std::move(name)),
      key_(std::move(key)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      size_(int(world_ranks_.size())),
      host_(std::move(host)),
      deadline_(deadline) {
  const int64_t bytes = control_bytes(size_);
  const uint64_t tag = hash_name("control " + key_);
  const auto end = Clock::now() + deadline_;
  Descriptor own = make_segment("phalanx " + name_, bytes);
  for (int other = 0; other < size_; ++other)
    if (other != rank_) host_->peers().send(world_ranks_[other], tag, own, bytes);
  for (int other = 0; other < size_; ++other)
    controls_.push_back(other == rank_
                            ? Mapping(own, bytes)
                            : Mapping(host_->peers().receive(world_ranks_[other], tag, bytes, end,
                                                             "making the group " + name_),
                                      bytes));
  charge_segment(SegmentUse::control, bytes);
  host_->groups.push_back(this);
}

Group::~Group() {
  charge_segment(SegmentUse::control, -control_bytes(size_));
  std::erase(host_->groups, this);
}

void Group::close() {
  auto nothing_owed = [this] { return owed_.empty() || (progress(), owed_.empty()); };
  if (failure_.empty()) try {
      wait_until(
          nothing_owed, [this] { return owed_.empty() ? Missing() : owed_[0]->missing(); },
          [this] { return "closing the group " + name_; }, deadline_);
    } catch (const Error&) {  // whoever still needed us has its own error
    }
  owed_.clear();
  control(rank_).closed.store(1, memory_order_release);
  wake_all();
}

uint64_t Group::begin(const Signature& signature, const Call& call) {
  check_aborted();
  if (!freed_.empty()) sweep_segments();
  const uint64_t number = issued_ + 1;
  retire_until([&] { return number - retired_ <= uint64_t(slot_count); },
               [&] {
                 return text("issuing call ", number, ": ", slot_count,
                             " calls are in flight, the oldest ", describe(rank_, retired_ + 1));
               });
  Slot& own = slot(rank_, number);
  own.signature = signature;
  own.signature.unit = hash_name(call.unit);
  own.signature.purpose = hash_name(call.purpose);
  own.location = {};
  own.produced.store(all_done, memory_order_relaxed);
  own.reduced.store(all_done, memory_order_relaxed);
  own.consumed.store(0, memory_order_relaxed);
  copy_text(own.unit, call.unit);
  copy_text(own.purpose, call.purpose);
  ring_end_[number % slot_count] = ring_head_;
  return number;
}

void Group::retire() {
  while (retired_ < issued_) {
    const uint64_t number = retired_ + 1;
    for (int other = 0; other < size_; ++other)
      if (slot(other, number).finished.load(memory_order_acquire) < number) return;
    ring_tail_ = ring_end_[number % slot_count];
    retired_ = number;
  }
}

// Slots and staging memory come back when all ranks have finished the oldest calls.
void Group::retire_until(c10::function_ref<bool()> enough, c10::function_ref<std::string()> what) {
  if (enough()) return;
  const auto ready = [&] {
    retire();
    return enough();
  };
  wait_until(ready, [this] { return missing(retired_ + 1); }, what, deadline_);
}

int64_t Group::reserve_ring(uint64_t number, int64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  int64_t begin = ring_head_;
  if (begin % ring_bytes + bytes > ring_bytes) begin += ring_bytes - begin % ring_bytes;
  retire_until([&] { return begin + bytes - ring_tail_ <= ring_bytes; },
               [&] {
                 return text("issuing call ", number,
                             ": the staging memory is full, the oldest is ",
                             describe(rank_, retired_ + 1));
               });
  ring_head_ = begin + bytes;
  ring_end_[number % slot_count] = ring_head_;
  return ring_offset + begin % ring_bytes;
}

void Group::stage(uint64_t number, const void* data, int64_t bytes) {
  const int64_t offset = reserve_ring(number, bytes);
  if (bytes > 0) std::memcpy(control_data(rank_) + offset, data, bytes);
  Location& location = slot(rank_, number).location;
  location.place = Place::ring;
  location.offset = offset;
}

void Group::place(uint64_t number, const at::Tensor& in) {
  const int64_t bytes = int64_t(in.nbytes());
  Location& location = slot(rank_, number).location;
  if (bytes == 0) return;
  // A copy of little costs less than peers that must say when they have read it.
  if (Found found = find(in.const_data_ptr(), bytes); found && bytes > ring_always) {
    location.place = Place::segment;
    location.segment = found.id;
    location.offset = found.offset;
  } else if (bytes <= ring_limit) {
    stage(number, in.const_data_ptr(), bytes);
  } else {
    location.place = Place::chunks;
  }
}

void Group::publish(uint64_t number) {
  issued_ = number;
  slot(rank_, number).published.store(number, memory_order_release);
  control(rank_).issued.store(number, memory_order_release);
  wake_all();
}

void Group::add(const std::shared_ptr<SharedCall>& call) {
  pending_.push_back(call.get());
  if (call->owes_peers()) owed_.push_back(call);
}

void Group::remove(SharedCall* call) { std::erase(pending_, call); }

bool Group::progress() {
  if (!failure_.empty()) return false;  // its error is said where it is waited in
  bool moved = false;
  for (size_t i = 0; i < pending_.size();) {
    SharedCall* call = pending_[i];
    if (!call->complete() || call->owes_peers()) {
      auto keep = call->weak_from_this().lock();
      moved |= call->advance();
    }
    if (i >= pending_.size() || pending_[i] != call) continue;  // it went away
    if (call->complete() && !call->owes_peers()) {
      pending_.erase(pending_.begin() + int64_t(i));
      std::erase_if(owed_, [&](const auto& owed) { return owed.get() == call; });
    } else {
      ++i;
    }
  }
  return moved;
}

bool Group::arrived(int rank, uint64_t number) {
  const Slot& other = slot(rank, number);
  const uint64_t published = other.published.load(memory_order_acquire);
  if (published < number) return false;
  if (other.signature != slot(rank_, number).signature) [[unlikely]]
    throw_mismatch(rank, number);
  return true;
}

const char* Group::input_of(int rank, const Location& location) {
  if (location.place == Place::ring) return control_data(rank) + location.offset;
  if (location.segment >= segments_.size() || segments_[location.segment].mappings.empty())
    fail_group(text("rank ", rank, " of group ", name_, " sends from buffer ", location.segment,
                    ", which rank ", rank_, " has freed; free buffers after the last call"));
  const Segment& found = segments_[location.segment];
  return (found.window ? found.mappings[0].data() : found.part(rank)) + location.offset;
}

bool Group::finished_by_peers(uint64_t number) {
  for (int other = 0; other < size_; ++other)
    if (other != rank_ && slot(other, number).finished.load(memory_order_acquire) < number)
      return false;
  return true;
}

// Who has not come, else who is furthest behind. In the order "produce chunk 0, reduce it, read it,
// produce chunk 1 ..." every step needs earlier ones only. So whoever has the earliest step to do
// could do it, while the others wait for it.
Missing Group::missing(uint64_t number) {
  Missing late;
  for (int other = 0; other < size_; ++other)
    if (other != rank_ && slot(other, number).published.load(memory_order_acquire) < number)
      late.ranks.push_back(other);
  if (!late.ranks.empty()) return late;
  late.issued = true;
  uint64_t earliest = UINT64_MAX;
  for (int other = 0; other < size_; ++other) {
    const Slot& peer = slot(other, number);
    if (other == rank_ || peer.published.load(memory_order_acquire) != number) continue;
    const uint64_t produced = peer.produced.load(memory_order_acquire);
    const uint64_t reduced = peer.reduced.load(memory_order_acquire);
    const uint64_t consumed = peer.consumed.load(memory_order_acquire);
    if (produced == all_done && peer.finished.load(memory_order_acquire) >= number) continue;
    const uint64_t step = std::min({3 * produced, 3 * reduced + 1, 3 * consumed + 2});
    if (step < earliest) late.ranks.clear();
    earliest = std::min(step, earliest);
    if (step == earliest) late.ranks.push_back(other);
  }
  return late;
}

std::string Group::describe(int rank, uint64_t number) {
  const Slot& call = slot(rank, number);
  return phalanx::describe(number, call.signature, call.unit, call.purpose);
}

void Group::throw_mismatch(int other, uint64_t number) {
  const int low = std::min(other, rank_), high = std::max(other, rank_);
  fail_group(text("ranks of group ", name_, " disagree: rank ", low, " issued ",
                  describe(low, number), "; rank ", high, " issued ", describe(high, number),
                  "; all ranks must issue the same calls in the same order"));
}

}  // namespace phalanx::shared
