#pragma once

#include <string>

#include "phalanx/comm/forwarding.h"
#include "phalanx/comm/world.h"

namespace phalanx::testing {

/// Which reduction of gradients comes out wrong, on which rank of the world and by what factor.
struct WrongReduction {
  std::string unit;
  int rank = 0;
  double factor = 1.01;
  int call = 1;  ///< of that unit, from 1
};

/// The groups of another world, in which one reduction of gradients is wrong: an error below the
/// engine, in what it gets from its communicator.
class WorldWithAWrongReduction : public World {
 public:
  WorldWithAWrongReduction(World& inner, WrongReduction wrong)
      : inner_(inner), wrong_(std::move(wrong)) {}
  const WorldInfo& info() const override { return inner_.info(); }
  Ledger& ledger() override { return inner_.ledger(); }
  const WorldOptions& options() const override { return inner_.options(); }
  std::unique_ptr<Communicator> group(std::string name, std::span<const int> ranks) override {
    auto group = inner_.group(std::move(name), ranks);
    if (info().rank != wrong_.rank) return group;
    return std::make_unique<Wrong>(std::move(group), wrong_);
  }

 private:
  class Scaled : public Pending {
   public:
    Scaled(Handle inner, at::Tensor out, double factor)
        : inner_(std::move(inner)), out_(std::move(out)), factor_(factor) {}
    void wait() override {
      inner_.wait();
      if (factor_ != 1) out_.mul_(factor_);
      factor_ = 1;
    }
    void wait_inputs() override { inner_.wait_inputs(); }
    bool done() const override { return inner_.done(); }

   private:
    Handle inner_;
    at::Tensor out_;
    double factor_;
  };

  class Wrong : public ForwardingCommunicator {
   public:
    Wrong(std::unique_ptr<Communicator> inner, const WrongReduction& wrong)
        : ForwardingCommunicator(std::move(inner)), wrong_(wrong) {}
    Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                          bool accumulate) override {
      return scaled(inner_->reduce_scatter(out, std::move(in), op, call, accumulate), out, call);
    }
    Handle all_reduce(at::Tensor inout, Op op, const Call& call) override {
      return scaled(inner_->all_reduce(inout, op, call), inout, call);
    }

   private:
    Handle scaled(Handle handle, const at::Tensor& out, const Call& call) {
      if (call.purpose != "gradients" || call.unit != wrong_.unit || ++calls_ != wrong_.call)
        return handle;
      return Handle(std::make_shared<Scaled>(std::move(handle), out, wrong_.factor));
    }
    WrongReduction wrong_;
    int calls_ = 0;
  };

  World& inner_;
  WrongReduction wrong_;
};

}  // namespace phalanx::testing
