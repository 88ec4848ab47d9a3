#pragma once

// A training state whose every element is known, as any number of ranks would hold it; and ranks
// that are threads, for tests that need collectives but no processes.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/state.h"
#include "phalanx/comm/communicator.h"
#include "phalanx/spec/unit_plan.h"

namespace phalanx::testing {

// One group of threads; only all_gather and broadcast, which is all that checkpoints use.
class ThreadRanks {
 public:
  explicit ThreadRanks(int ranks) : inputs_(ranks) {}

  class Rank final : public Communicator {
   public:
    Rank(ThreadRanks& group, int rank) : group_(group), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return static_cast<int>(group_.inputs_.size()); }
    std::string_view name() const override { return "threads"; }
    std::string_view transport() const override { return "threads"; }
    at::Tensor allocate(int64_t bytes) override { return at::zeros({bytes}, at::kByte); }
    at::Tensor allocate_window(int64_t) override { return {}; }
    Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
      deadlines_[std::string(call.purpose)] = call.deadline;
      group_.inputs_[rank_] = in;
      group_.meet();
      for (int rank = 0; rank < size(); ++rank)
        out.view({size(), -1})[rank].copy_(group_.inputs_[rank].view(-1));
      group_.meet();
      return {};
    }
    Handle reduce_scatter(at::Tensor, at::Tensor, Op, const Call&, bool) override { none(); }
    Handle all_reduce(at::Tensor, Op, const Call&) override { none(); }
    Handle broadcast(at::Tensor inout, int root, const Call& call) override {
      deadlines_[std::string(call.purpose)] = call.deadline;
      group_.inputs_[rank_] = inout;
      group_.meet();
      if (rank_ != root) inout.copy_(group_.inputs_[root]);
      group_.meet();
      return {};
    }
    Handle all_to_all(at::Tensor, std::span<const int64_t>, at::Tensor, std::span<const int64_t>,
                      const Call&) override {
      none();
    }
    Handle send(at::Tensor, int, int, const Call&) override { none(); }
    Handle receive(at::Tensor, int, int, const Call&) override { none(); }
    void barrier(const Call&) override { none(); }
    void abort(std::string_view) override { none(); }
    // Of the last call with that purpose.
    std::chrono::milliseconds deadline_of(const std::string& purpose) const {
      return deadlines_.at(purpose);
    }

   private:
    [[noreturn]] static void none() { fail(ExitCode::usage, "threads only gather and broadcast"); }
    ThreadRanks& group_;
    int rank_;
    std::map<std::string, std::chrono::milliseconds> deadlines_;
  };

  // Runs `body` on every rank; returns what each threw, "" if nothing.
  static std::vector<std::string> run(int ranks, const std::function<void(Communicator&)>& body) {
    at::set_num_threads(
        1);  // here, since after a fork the first thread to use LibTorch's pool resets it
    ThreadRanks group(ranks);
    std::vector<std::string> errors(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        Rank communicator(group, rank);
        try {
          body(communicator);
        } catch (const std::exception& error) {
          errors[rank] = error.what();
          group.leave();
        }
      });
    for (auto& thread : threads) thread.join();
    return errors;
  }

 private:
  void meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == inputs_.size()) {
      arrived_ = 0, ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round || left_; });
    require(round_ != round, ExitCode::peer_lost, "a rank left alone");
  }
  void leave() {
    std::lock_guard lock(mutex_);
    left_ = true;
    all_here_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable all_here_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
  bool left_ = false;
  std::vector<at::Tensor> inputs_;
};

// The whole tensor: values 0 to 250, exact in every type; of bool every other one.
inline at::Tensor expected(const std::string& name, const std::string& role,
                           const std::vector<int64_t>& shape, at::ScalarType dtype, int salt = 0) {
  int64_t count = element_count(shape);
  const auto start = static_cast<int64_t>(std::hash<std::string>()(name + role) % 1000) + salt;
  return at::arange(start, start + count, at::kLong)
      .remainder(dtype == at::kBool ? 2 : 251)
      .to(dtype)
      .view(shape);
}

inline at::Tensor view_of(const at::Tensor& whole, const Box& box) {
  return phalanx::view_of(whole, whole_box(whole.sizes().vec()), box);
}

struct Role {
  std::string name;
  at::ScalarType dtype;
  bool sharded;
};

// A parameter's whole local tensor, assembled from its pieces.
inline at::Tensor local_tensor(const ParameterSpec& spec, const Role& role, int salt) {
  at::Tensor local = at::full(spec.local_shape, 255, role.dtype);
  for (const Piece& piece : spec.pieces)
    view_of(local, piece.local)
        .copy_(view_of(expected(piece.name, role.name, piece.global_shape, role.dtype, salt),
                       piece.global));
  return local;
}

// What `rank` of `ranks` holds under the flat cut, filled with the expected values, or with 254.
inline std::vector<StateEntry> flat_state(const std::vector<ParameterSpec>& specs,
                                          const std::vector<Role>& roles, int rank, int ranks,
                                          bool filled, int salt = 0) {
  const UnitPlan plan = plan_unit("unit", specs, {}, ranks);
  std::vector<StateEntry> state;
  for (const Role& role : roles)
    for (size_t i = 0; i < specs.size(); ++i) {
      UnitPlan::Range range = plan.range(i, rank);
      if (!role.sharded) range = {0, element_count(specs[i].local_shape)};
      at::Tensor shard = at::full({range.count()}, 254, role.dtype);
      if (filled && !range.empty())
        shard.copy_(local_tensor(specs[i], role, salt).view(-1).slice(0, range.begin, range.end));
      for (auto& entry : shard_entries(specs[i], range.begin, range.end, shard, role.name))
        state.push_back(std::move(entry));
    }
  return state;
}

// Sentences about every part that does not have the expected values.
inline std::string differences(const std::vector<StateEntry>& state, int salt = 0) {
  std::string found;
  for (const auto& entry : state)
    for (const auto& part : entry.parts) {
      const at::Tensor whole =
          expected(entry.name, entry.role, entry.global_shape, part.local.scalar_type(), salt);
      if (!at::equal(part.local, view_of(whole, part.box)))
        found += entry.name + " (" + entry.role + ") differs; ";
    }
  return found;
}

// A weight whose three pieces lie side by side along `dim` (a fused q, k, v).
inline ParameterSpec fused(const std::string& name, std::vector<int64_t> piece_shape, size_t dim) {
  ParameterSpec spec = whole_parameter(name, name, piece_shape, Kind::weight, {});
  spec.local_shape[dim] *= 3;
  spec.pieces.clear();
  for (int64_t i = 0; i < 3; ++i) {
    Piece piece{name + "." + std::to_string(i), piece_shape, whole_box(piece_shape),
                whole_box(piece_shape)};
    piece.local.offset[dim] = i * piece_shape[dim];
    spec.pieces.push_back(std::move(piece));
  }
  return spec;
}

inline std::vector<ParameterSpec> small_model() {
  const auto plain = [](const std::string& name, std::vector<int64_t> shape) {
    return whole_parameter(name, name, std::move(shape), Kind::weight, {});
  };
  return {plain("wte.weight", {33, 7}), plain("norm.bias", {1}),  plain("scale", {}),
          plain("nothing", {0, 4}),     plain("cube", {3, 5, 4}), fused("qkv", {6, 5}, 0),
          fused("side", {6, 5}, 1)};
}

}  // namespace phalanx::testing
