#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/comm/communicator.h"
#include "phalanx/comm/history.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/local_peers.h"
#include "phalanx/comm/signature.h"
#include "phalanx/comm/world.h"

namespace c10d {
class ProcessGroupGloo;
class Store;
class Work;
}  // namespace c10d

namespace phalanx::gloo_transport {

using WorkPointer = c10::intrusive_ptr<c10d::Work>;

/// What the calls of one Gloo group share: the connections, the fingerprints, the errors.
class Group {
 public:
  /// `key`: of the store, and of no other group of this world.
  Group(std::string name, const std::string& key, std::vector<int> world_ranks, int rank,
        c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<LocalPeers> peers, bool one_host,
        const WorldInfo& info, const WorldOptions& options, Ledger& ledger, CallHistory& history);
  ~Group();

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Notes the call and, in debug mode, compares its fingerprint with the other ranks'.
  uint64_t begin(Signature signature, const Call& call, int64_t bytes);
  uint64_t begin_message(const char* operation, const Call& call, int64_t bytes);

  // Data movement; tensors are of bytes, and kept until the work is done. `deadline`: as in Call.
  WorkPointer all_gather(at::Tensor out, at::Tensor in, std::chrono::milliseconds deadline);
  WorkPointer all_to_all(at::Tensor out, std::vector<int64_t> out_bytes, at::Tensor in,
                         std::vector<int64_t> in_bytes, bool second = false);
  WorkPointer broadcast(at::Tensor inout, int root, std::chrono::milliseconds deadline);
  WorkPointer send(at::Tensor tensor, int peer, int tag);
  WorkPointer receive(at::Tensor tensor, int peer, int tag);

  /// A failed wait ends the group: Gloo's connections are closed. Throws, naming who is missing.
  [[noreturn]] void fail_group(const std::string& call, const std::string& why);
  void check() const;
  [[noreturn]] void leave(std::string_view why);
  std::chrono::milliseconds deadline() const { return options_.deadline; }

  LedgerRows ledger;
  CallHistory& history;

 private:
  void connect(bool one_host);
  std::string missing_ranks();
  std::string gone_ranks();  ///< of this host; empty if none

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_, size_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<LocalPeers> peers_;
  WorldInfo info_;
  WorldOptions options_;
  // One thread each, so that works end in the order in which they were issued. The second carries
  // what follows inside a call, so that its order is that of the calls, too.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> first_, second_;
  uint64_t calls_ = 0;
  std::string failure_;
};

/// A contiguous tensor's memory as bytes. Keeps the tensor.
at::Tensor bytes_of(const at::Tensor& tensor);

}  // namespace phalanx::gloo_transport
