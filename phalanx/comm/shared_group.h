#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "phalanx/comm/communicator.h"
#include "phalanx/comm/history.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/local_peers.h"
#include "phalanx/comm/shared_control.h"

namespace phalanx::shared {

class Group;

/// This process among the ranks of its host: their sockets, their bells, and all groups in which
/// calls are pending. A rank that waits in one group goes on with its calls in all others, so that
/// ranks may wait in different orders.
class Host {
 public:
  Host(int rank, std::shared_ptr<LocalPeers> peers, const std::vector<int>& local_ranks,
       std::chrono::steady_clock::time_point deadline);
  LocalPeers& peers() { return *peers_; }
  void wake(int world_rank);
  Bell& own_bell() { return *bells_[rank_]; }
  bool spins() const { return spins_; }
  bool progress();  ///< one round over all pending calls; true if any moved

  std::vector<Group*> groups;

 private:
  int rank_;
  bool spins_;
  std::shared_ptr<LocalPeers> peers_;
  std::vector<Mapping> mappings_;
  std::vector<Bell*> bells_;  // by world rank
};

/// Group ranks that a wait is for.
struct Missing {
  std::vector<int> ranks;
  bool issued = false;  ///< they came, and have not gone on
};

/// One issued call. advance() does what can be done without waiting.
class SharedCall : public Pending, public std::enable_shared_from_this<SharedCall> {
 public:
  SharedCall(std::shared_ptr<Group> group, const Call& call);
  ~SharedCall() override;
  void wait() final;
  bool done() const final { return const_cast<SharedCall*>(this)->poll(); }

  virtual bool advance() = 0;                        ///< true if anything moved
  virtual bool owes_peers() const { return false; }  ///< peers still need this rank's work
  virtual Missing missing() const = 0;               ///< whom this call waits for
  virtual std::string describe() const = 0;
  bool complete() const { return complete_; }
  bool poll() {
    if (!complete_) advance();
    return complete_;
  }

 protected:
  void finish(int64_t received_bytes);

  std::shared_ptr<Group> group_;
  std::string purpose_;
  std::chrono::milliseconds deadline_;
  uint64_t record_ = 0;
  bool complete_ = false;
};

/// What the ranks of one group share: control blocks, segments, and this rank's pending calls.
class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(std::string name, std::string key, std::vector<int> world_ranks, int rank,
        std::shared_ptr<Host> host, std::chrono::milliseconds deadline, Ledger& ledger,
        CallHistory& history);
  ~Group();
  void close();  ///< finishes what peers need of this rank, then tells them

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds deadline() const { return deadline_; }

  Control& control(int rank) { return *reinterpret_cast<Control*>(controls_[rank].data()); }
  char* control_data(int rank) { return controls_[rank].data(); }
  Slot& slot(int rank, uint64_t call) { return control(rank).slots[call % slot_count]; }

  // Issuing.
  uint64_t begin(const Signature& signature, const Call& call);  ///< waits for a free slot
  void stage(uint64_t number, const void* data, int64_t bytes);  ///< into the ring
  int64_t reserve_ring(uint64_t number, int64_t bytes);          ///< offset in the control block
  void place(uint64_t number, const at::Tensor& in);  ///< segment, ring or chunks, as `in` allows
  void publish(uint64_t number);
  void add(const std::shared_ptr<SharedCall>& call);
  void remove(SharedCall* call);

  // Reading.
  bool arrived(int rank, uint64_t number);  ///< and has issued the same call, else throws
  const char* input_of(int rank, const Location& location);
  bool finished_by_peers(uint64_t number);
  Missing missing(uint64_t number);  ///< whom a call waits for
  void wake(int rank) { host_->wake(world_ranks_[rank]); }
  void wake_all();

  /// Returns once ready() is true; throws when it can't become true.
  void wait_until(c10::function_ref<bool()> ready, c10::function_ref<Missing()> missing,
                  c10::function_ref<std::string()> what, std::chrono::milliseconds deadline);
  bool progress();
  void abort(std::string_view why);
  [[noreturn]] void fail_group(const std::string& sentence);
  std::string describe(int rank, uint64_t number);

  // Memory.
  at::Tensor allocate(int64_t bytes, bool window);
  struct Segment {
    bool window = false;
    int64_t bytes = 0;              ///< of a rank
    std::vector<Mapping> mappings;  ///< per rank; of a window only one
    uint32_t uses = 0, held = 0;    ///< of a window: gathers issued, gathers not released
    char* part(int rank) const {
      return window ? mappings[0].data() + rank * bytes : mappings[rank].data();
    }
  };
  struct Found {
    uint32_t id = UINT32_MAX;
    int64_t offset = 0;  ///< from this rank's part; of a window from its begin
    explicit operator bool() const { return id != UINT32_MAX; }
  };
  Found find(const void* data, int64_t bytes);
  Segment& segment(uint32_t id) { return segments_[id]; }
  void release_window(uint32_t id);
  bool window_free(uint32_t id, uint32_t use, std::vector<int>* holders = nullptr);

  uint64_t last_chunked = 0;  ///< the last call that stages in chunks

  // Messages, by peer.
  struct Taken {
    uint64_t first = 1;  ///< all messages before are taken
    std::set<uint64_t> numbers;
    uint64_t chunked = 0;  ///< the one that is travelling in chunks
  };
  struct Asked {
    int peer, tag;
    uint64_t order;
  };
  std::vector<uint64_t> sent;
  std::vector<Taken> taken;
  std::vector<Asked> unmatched;
  uint64_t receives = 0;

  LedgerRows ledger;
  CallHistory& history;

 private:
  void retire();
  void retire_until(c10::function_ref<bool()> enough, c10::function_ref<std::string()> what);
  void sweep_segments();
  void free_segment(uint32_t id);
  void check_peers(c10::function_ref<bool()> ready, c10::function_ref<Missing()> missing,
                   c10::function_ref<std::string()> what);
  void check_aborted();
  [[noreturn]] void fail_late(const Missing& late, const std::string& what,
                              std::chrono::milliseconds deadline);
  [[noreturn]] void throw_mismatch(int other, uint64_t number);

  std::string name_, key_;  // for people; for peers, who may share several groups of one name
  std::vector<int> world_ranks_;
  int rank_, size_;
  std::shared_ptr<Host> host_;
  std::chrono::milliseconds deadline_;
  std::vector<Mapping> controls_;
  uint64_t issued_ = 0, retired_ = 0;
  int64_t ring_head_ = 0, ring_tail_ = 0;
  int64_t ring_end_[slot_count] = {};
  std::vector<SharedCall*> pending_;
  std::vector<std::shared_ptr<SharedCall>> owed_;
  std::vector<Segment> segments_;
  std::map<char*, uint32_t> by_address_;
  std::set<uint32_t> freed_;
  std::string failure_;
};

}  // namespace phalanx::shared
