#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "phalanx/base/cores.h"
#include "phalanx/base/error.h"
#include "phalanx/base/pause.h"
#include "phalanx/comm/shared_group.h"

// Waiting for peers: a moment awake, then asleep until a bell rings, with an eye on who died.
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

}  // namespace

Host::Host(int rank, std::shared_ptr<LocalPeers> peers, const std::vector<int>& local_ranks,
           Clock::time_point deadline)
    : rank_(rank), spins_(int(local_ranks.size()) <= available_cores()), peers_(std::move(peers)) {
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

void Group::wake_all() {
  std::atomic_thread_fence(memory_order_seq_cst);  // the news before the look at the sleepers
  for (int other = 0; other < size_; ++other)
    if (other != rank_) wake(other);
}

void Group::wait_until(c10::function_ref<bool()> ready, c10::function_ref<Missing()> missing,
                       c10::function_ref<std::string()> what, std::chrono::milliseconds deadline) {
  if (ready()) return;
  if (host_->spins())
    for (int i = 0; i < spins; ++i) {
      spin_pause();
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
    if (host_->progress()) {
      yielded = 0;
      continue;
    }
    check_aborted();
    const auto now = Clock::now();
    if (now - looked >= slice) {
      check_peers(ready, missing, what);
      looked = now;
    }
    if (now - begin > deadline) fail_late(missing(), what(), deadline);
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

void Group::fail_late(const Missing& late, const std::string& what,
                      std::chrono::milliseconds deadline) {
  std::vector<std::string> ranks;
  for (int other : late.ranks) {
    const uint64_t last = control(other).issued.load(memory_order_acquire);
    ranks.push_back(text("rank ", other, " (process ", host_->peers().process(world_ranks_[other]),
                         "; its last: ", last ? describe(other, last) : "no call of this group",
                         ")"));
  }
  fail_group(text("the deadline of ", deadline.count(), " ms passed on rank ", rank_, " of group ",
                  name_, " in ", what,
                  !late.issued        ? "; did not arrive: "
                  : ranks.size() == 1 ? "; has not gone on in it: "
                                      : "; have not gone on in it: ",
                  join(ranks)));
}

void Group::check_peers(c10::function_ref<bool()> ready, c10::function_ref<Missing()> missing,
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
    const auto waits_for = missing().ranks;
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

}  // namespace phalanx::shared
