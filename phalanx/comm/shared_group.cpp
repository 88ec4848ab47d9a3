#include "phalanx/comm/shared_group.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

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
using std::memory_order_seq_cst;
constexpr std::chrono::milliseconds slice(50);
// Spinning pays where the peer runs on another core and comes at once, and costs where it waits for
// this very core: so it is short, and yielding follows, which on an idle core is a spin, too.
constexpr int spins = 60;  // pauses: about 2 us
constexpr int yields = 10;

int usable_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

Host::Host(int rank, std::shared_ptr<LocalPeers> peers, const std::vector<int>& local_ranks,
           Clock::time_point deadline)
    : rank_(rank), spins_(int(local_ranks.size()) <= usable_cores()), peers_(std::move(peers)) {
  const int64_t bytes = round_up(sizeof(Bell));
  const uint64_t tag = hash_name("bell");
  Descriptor own = make_segment("phalanx bell", bytes);
  bells_.resize(*std::max_element(local_ranks.begin(), local_ranks.end()) + 1);
  for (int other : local_ranks)
    if (other != rank) peers_->send(other, tag, own, bytes);
  for (int other : local_ranks) {
    mappings_.push_back(other == rank ? Mapping(own, bytes)
                                      : Mapping(peers_->receive(other, tag, bytes, deadline,
                                                                "joining the ranks of a host"),
                                                bytes));
    bells_[other] = reinterpret_cast<Bell*>(mappings_.back().data());
  }
  peers_->while_waiting = [this] { return progress(); };
}

void Host::wake(int world_rank) {
  Bell& bell = *bells_[world_rank];
  if (bell.sleeping.load(memory_order_relaxed) == 0) return;
  bell.bell.fetch_add(1, memory_order_seq_cst);
  syscall(SYS_futex, &bell.bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool Host::progress() {
  bool moved = false;
  for (size_t i = 0; i < groups.size(); ++i) moved |= groups[i]->progress();
  return moved;
}

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

Group::Group(std::string name, std::vector<int> world_ranks, int rank, std::shared_ptr<Host> host,
             std::chrono::milliseconds deadline, Ledger& ledger_, CallHistory& history_)
    : sent(world_ranks.size()),
      taken(world_ranks.size()),
      ledger(ledger_, name),
      history(history_),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      size_(int(world_ranks_.size())),
      host_(std::move(host)),
      deadline_(deadline) {
  require(size_ <= max_ranks, ExitCode::usage, "group ", name_, " has ", size_,
          " ranks on one host; shared memory serves at most ", max_ranks);
  const int64_t bytes = control_bytes(size_);
  const uint64_t tag = hash_name("control " + name_);
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
  if (closed_) return;
  closed_ = true;
  auto nothing_owed = [this] { return owed_.empty() || (progress(), owed_.empty()); };
  if (failure_.empty()) try {
      wait_until(
          nothing_owed, [this] { return owed_.empty() ? std::vector<int>() : owed_[0]->missing(); },
          [this] { return "closing the group " + name_; }, deadline_);
    } catch (const Error&) {  // whoever still needed us has its own error
    }
  owed_.clear();
  control(rank_).closed.store(1, memory_order_release);
  wake_all();
}

void Group::wake_all() {
  std::atomic_thread_fence(memory_order_seq_cst);  // the news before the look at the sleepers
  for (int other = 0; other < size_; ++other)
    if (other != rank_) wake(other);
}

uint64_t Group::begin(const Signature& signature, const Call& call) {
  check_aborted();
  require(!closed_, ExitCode::usage, "group ", name_, " is closed");
  if (!freed_.empty()) sweep_segments();
  const uint64_t number = issued_ + 1;
  if (number - retired_ > uint64_t(slot_count)) {
    auto ready = [&] {
      retire();
      return number - retired_ <= uint64_t(slot_count);
    };
    auto missing = [&] {
      std::vector<int> ranks;
      for (int other = 0; other < size_; ++other)
        if (slot(other, retired_ + 1).finished.load(memory_order_acquire) < retired_ + 1)
          ranks.push_back(other);
      return ranks;
    };
    wait_until(
        ready, missing,
        [&] {
          return text("issuing call ", number, ": ", slot_count,
                      " calls are in flight, the oldest ", describe(rank_, retired_ + 1));
        },
        deadline_);
  }
  Slot& own = slot(rank_, number);
  own.signature = signature;
  own.signature.unit = hash_name(call.unit);
  own.signature.purpose = hash_name(call.purpose);
  own.location = {};
  own.produced.store(0, memory_order_relaxed);
  own.reduced.store(0, memory_order_relaxed);
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

int64_t Group::reserve_ring(uint64_t number, int64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  int64_t begin = ring_head_;
  if (begin % ring_bytes + bytes > ring_bytes) begin += ring_bytes - begin % ring_bytes;
  if (begin + bytes - ring_tail_ > ring_bytes) {
    auto ready = [&] {
      retire();
      return begin + bytes - ring_tail_ <= ring_bytes;
    };
    auto missing = [&] {
      std::vector<int> ranks;
      for (int other = 0; other < size_; ++other)
        if (slot(other, retired_ + 1).finished.load(memory_order_acquire) < retired_ + 1)
          ranks.push_back(other);
      return ranks;
    };
    wait_until(
        ready, missing,
        [&] {
          return text("issuing call ", number, ": the staging memory is full, the oldest is ",
                      describe(rank_, retired_ + 1));
        },
        deadline_);
  }
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
  bool moved = false;
  for (size_t i = 0; i < pending_.size();) {
    SharedCall* call = pending_[i];
    if (!call->complete_ || call->owes_peers()) {
      auto keep = call->weak_from_this().lock();
      moved |= call->advance();
    }
    if (i >= pending_.size() || pending_[i] != call) continue;  // it went away
    if (call->complete_ && !call->owes_peers()) {
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

void Group::wait_until(c10::function_ref<bool()> ready,
                       c10::function_ref<std::vector<int>()> missing,
                       c10::function_ref<std::string()> what, std::chrono::milliseconds deadline) {
  if (ready()) return;
  if (host_->spins())
    for (int i = 0; i < spins; ++i) {
      _mm_pause();
      if (ready()) return;
    }
  const auto begin = Clock::now();
  struct Waiting {
    LedgerRows& ledger;
    Clock::time_point begin;
    ~Waiting() { ledger.add_wait(Clock::now() - begin); }
  } waiting{ledger, begin};
  auto looked = begin;
  Bell& bell = host_->own_bell();
  int yielded = 0;
  for (;;) {
    if (ready()) return;
    if (host_->progress()) continue;
    check_aborted();
    const auto now = Clock::now();
    if (now - looked >= slice) {
      check_peers(ready, missing, what);
      looked = now;
    }
    if (now - begin > deadline) {
      std::string sentence = text("the deadline of ", deadline.count(), " ms passed on rank ",
                                  rank_, " of group ", name_, " in ", what(), "; did not arrive: ");
      const char* separator = "";
      for (int other : missing()) {
        const uint64_t last = control(other).issued.load(memory_order_acquire);
        sentence += text(
            separator, "rank ", other, " (process ", host_->peers().process(world_ranks_[other]),
            "; its last: ", last ? describe(other, last) : "no call of this group", ")");
        separator = ", ";
      }
      fail_group(sentence);
    }
    if (yielded++ < yields) {
      sched_yield();
      continue;
    }
    const uint32_t value = bell.bell.load(memory_order_seq_cst);
    bell.sleeping.store(1, memory_order_seq_cst);
    std::atomic_thread_fence(memory_order_seq_cst);
    if (!ready() && !host_->progress()) {
      timespec limit{0, std::chrono::nanoseconds(slice).count()};
      syscall(SYS_futex, &bell.bell, FUTEX_WAIT, value, &limit, nullptr, 0);
    }
    bell.sleeping.store(0, memory_order_relaxed);
  }
}

void Group::check_peers(c10::function_ref<bool()> ready,
                        c10::function_ref<std::vector<int>()> missing,
                        c10::function_ref<std::string()> what) {
  host_->peers().poll();
  auto gone = [&](int other) {
    return control(other).closed.load(memory_order_acquire) ||
           host_->peers().left(world_ranks_[other]);
  };
  for (int other = 0; other < size_; ++other) {
    if (other == rank_) continue;
    const bool dead = host_->peers().dead(world_ranks_[other]) &&
                      !control(other).closed.load(memory_order_acquire);
    if (!dead && !gone(other)) continue;
    if (ready()) return;  // what it had written before is enough
    const auto waits_for = missing();
    const bool needed = std::find(waits_for.begin(), waits_for.end(), other) != waits_for.end();
    check_aborted();  // whoever met the cause first has said so
    if (dead)
      fail_group(text("rank ", other, " of group ", name_, " (process ",
                      host_->peers().process(world_ranks_[other]), ") died while rank ", rank_,
                      " waited in ", what()));
    if (needed)
      fail_group(text("rank ", other, " of group ", name_, " has finished and left while rank ",
                      rank_, " waits for it in ", what()));
  }
}

void Group::abort(std::string_view why) {
  Control& own = control(rank_);
  if (failure_.empty()) failure_ = why;
  uint32_t none = 0;
  if (!own.aborted.compare_exchange_strong(none, 1)) return;
  copy_text(own.reason, why);
  own.aborted.store(2, memory_order_release);
  wake_all();
}

void Group::check_aborted() {
  for (int other = 0; other < size_; ++other)
    if (failure_.empty() && other != rank_ &&
        control(other).aborted.load(memory_order_acquire) == 2)
      failure_ = text(control(other).reason, " (rank ", other, " said so)");
  if (!failure_.empty()) throw Error(ExitCode::peer_lost, failure_);
}

void Group::fail_group(const std::string& sentence) {
  abort(sentence);
  throw Error(ExitCode::peer_lost, sentence);
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
