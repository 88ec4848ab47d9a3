#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace phalanx {

/// Names one use of a communicator: in the ledger, the call history and every error.
struct Call {
  std::string_view unit;     ///< "blocks.3", "root", "loss"
  std::string_view purpose;  ///< "parameters", "gradients", "norm" ...: the ledger's row
  std::chrono::milliseconds deadline{0};  ///< 0: the communicator's default
};

enum class Op : uint8_t { sum, max, min };

/// What a transport keeps for one issued call. Handle owns it.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
  virtual void release() {}
  virtual void wait_inputs() = 0;
  virtual bool done() const = 0;
};

/// Two ends of one issued call. Used by the thread that issued it; movable, not copyable.
/// A destroyed handle has released; it does not wait.
class Handle {
 public:
  Handle() = default;  ///< of nothing: every wait returns at once
  explicit Handle(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
  Handle(Handle&&) = default;
  Handle& operator=(Handle&& other) {
    release();
    pending_ = std::move(other.pending_);
    return *this;
  }
  ~Handle() { release(); }

  /// My output is ready (CUDA: the current stream waits). Throws Error(peer_lost) after the
  /// deadline, naming the ranks that did not arrive.
  void wait() const {
    if (pending_) pending_->wait();
  }
  /// I no longer read peers' memory through this call's output. Matters to gathers into a window,
  /// where the output *is* the peers' memory; elsewhere wait() has already copied.
  void release() const {
    if (pending_) pending_->release();
  }
  /// Peers have read (and released) my input: I may overwrite it.
  void wait_inputs() const {
    if (pending_) pending_->wait_inputs();
  }
  /// wait() would return without waiting for a peer.
  bool done() const { return !pending_ || pending_->done(); }
  explicit operator bool() const { return pending_ != nullptr; }

 private:
  std::shared_ptr<Pending> pending_;
};

/// A group of ranks and the collectives among them. Calls are issued in the same order by all
/// ranks, with equal shapes and dtypes; a mismatch is an error on every rank that names both sides.
/// Tensors are contiguous. Sums run in rank order, accumulated in float32 for 16-bit data, so
/// that transports agree bit for bit. Not thread-safe: one thread issues and waits.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view name() const = 0;       ///< "dp_shard"
  virtual std::string_view transport() const = 0;  ///< "shared memory", "gloo", "single"
  virtual int64_t epoch() const { return 0; }      ///< grows when the group is rebuilt

  /// Zeroed memory of `bytes` that this communicator sends from and receives into without staging
  /// (dtype uint8). Same order of calls with equal sizes on all ranks.
  virtual at::Tensor allocate(int64_t bytes) = 0;

  /// One buffer of size() equal parts of `part_bytes` that all ranks of the group share: rank r
  /// writes part r, and an all_gather whose output is the window and whose input is this rank's
  /// part copies nothing. Undefined where ranks share no memory. Zeroed, dtype uint8.
  virtual at::Tensor allocate_window(int64_t part_bytes) = 0;

  /// out: size() x in's elements, rank-major. `in` may be this rank's part of `out`.
  virtual Handle all_gather(at::Tensor out, at::Tensor in, const Call&) = 0;

  /// in: size() x out's elements, rank-major. out = sum over ranks of their part for this rank, or
  /// out += that with `accumulate`. `out` may be this rank's part of `in`.
  virtual Handle reduce_scatter(at::Tensor out, at::Tensor in, Op, const Call&,
                                bool accumulate = false) = 0;

  virtual Handle all_reduce(at::Tensor inout, Op, const Call&) = 0;
  virtual Handle broadcast(at::Tensor inout, int root, const Call&) = 0;

  /// in is cut along dim 0 by in_splits (one per rank), out by out_splits; rows have equal size.
  virtual Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                            std::span<const int64_t> in_splits, const Call&) = 0;

  virtual Handle send(at::Tensor tensor, int peer, int tag, const Call&) = 0;
  virtual Handle receive(at::Tensor tensor, int peer, int tag, const Call&) = 0;
  virtual void barrier(const Call&) = 0;

  /// Ends every wait of this group, on all ranks, with `why` in the error. Gloo can't interrupt a
  /// call: there this process logs `why` and leaves with exit code 4, and the others miss it. In a
  /// group of one rank it throws.
  virtual void abort(std::string_view why) = 0;
};

/// The group of one rank: every collective is a local copy or nothing.
std::unique_ptr<Communicator> single_communicator(std::string name);

}  // namespace phalanx
