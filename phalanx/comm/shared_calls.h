#pragma once

#include <algorithm>
#include <bitset>
#include <memory>
#include <span>
#include <vector>

#include "phalanx/comm/shared_group.h"

// The collectives over shared memory, as calls that advance without waiting. Each issues itself and
// returns what its handle holds.
namespace phalanx::shared {

/// A numbered call of all ranks; stages this rank's input in chunks where it is large and private.
class Collected : public SharedCall {
 public:
  Collected(std::shared_ptr<Group> group, const Call& call) : SharedCall(std::move(group), call) {}
  ~Collected() override;
  void wait_inputs() override;
  bool owes_peers() const override { return chunked_ && staged_ < chunks_; }
  Missing missing() const override;
  std::string describe() const override { return group_->describe(group_->rank(), number_); }

 protected:
  using Ranks = std::bitset<max_ranks>;
  void begin(const Signature& signature, const Call& call, int64_t bytes);
  void set_input(const at::Tensor& in);
  void publish();
  void complete_call(int64_t received_bytes);
  bool stage_chunks();
  uint32_t counted(int64_t chunks) const { return chunks == chunks_ ? all_done : chunks; }
  virtual void fill_chunk(int64_t chunk, char* to) = 0;
  bool may_fill(uint32_t chunk);  ///< its buffer has been read by all
  Slot& own() { return group_->slot(group_->rank(), number_); }
  Slot& slot(int rank) { return group_->slot(rank, number_); }
  char* chunk(int rank, int64_t index) {
    return group_->control_data(rank) + chunk_offset + index % chunk_depth * chunk_bytes;
  }
  /// A chunk that holds something else for each of the others: how much, and where it lies.
  int64_t part_size() const { return chunk_bytes / std::max(1, size() - 1) / 64 * 64; }
  int64_t part_offset(int from, int to) const { return (to > from ? to - 1 : to) * part_size(); }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }

  uint64_t number_ = 0;
  at::Tensor out_, in_;
  Location place_;
  bool chunked_ = false, buffers_mine_ = false;
  uint64_t chunked_before_ = 0;
  int64_t chunks_ = 0, staged_ = 0;
  Ranks done_;
};

std::shared_ptr<Pending> all_gather(std::shared_ptr<Group>, at::Tensor out, at::Tensor in,
                                    const Call&);
std::shared_ptr<Pending> broadcast(std::shared_ptr<Group>, at::Tensor inout, int root, const Call&);
std::shared_ptr<Pending> all_to_all(std::shared_ptr<Group>, at::Tensor out,
                                    std::span<const int64_t> out_splits, at::Tensor in,
                                    std::span<const int64_t> in_splits, const Call&);
std::shared_ptr<Pending> barrier(std::shared_ptr<Group>, const Call&);
std::shared_ptr<Pending> reduce_scatter(std::shared_ptr<Group>, at::Tensor out, at::Tensor in, Op,
                                        const Call&, bool accumulate);
std::shared_ptr<Pending> all_reduce(std::shared_ptr<Group>, at::Tensor inout, Op, const Call&);
std::shared_ptr<Pending> send(std::shared_ptr<Group>, at::Tensor tensor, int peer, int tag,
                              const Call&);
std::shared_ptr<Pending> receive(std::shared_ptr<Group>, at::Tensor tensor, int peer, int tag,
                                 const Call&);

}  // namespace phalanx::shared
