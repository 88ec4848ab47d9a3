// Units that are used in ways that they are not made for.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/shard/toy_model.h"

namespace phalanx {
namespace {

using testing::ToyModel;

// A model of one block under FSDP on one rank.
struct Alone {
  std::unique_ptr<Communicator> group = single_communicator("alone");
  std::unique_ptr<Device> device = cpu_device();
  ToyModel model{1};
  Layout layout;
  DataParallel engine;
  Alone() : layout(in_float64()), engine(make()) {}
  static Layout in_float64() {
    Layout layout;
    layout.compute = layout.master = layout.reduce_dtype = Dtype::float64;
    return layout;
  }
  DataParallel make() { return {layout, *group, *device, model.units(), &ToyModel::initialize}; }
};

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Unit, RefusesToReleaseWithoutAGatherAndToShareAParameter) {
  Alone alone;
  EXPECT_NE(error_of([&] {
              alone.engine.unit(1).release_parameters();
            }).find("blocks.0: released without a gather"),
            std::string::npos);
  EXPECT_NE(error_of([&] { alone.make(); }).find("belongs to another unit"), std::string::npos);
}

TEST(Unit, TouchingAShardedParameterThrowsWithTheUnitsName) {
  Alone alone;
  const auto& block = *alone.model.blocks[0];
  const auto use = [&] { (void)at::mm(block.w1->tensor, block.w2->tensor); };
  EXPECT_NE(error_of(use).find("unit blocks.0 is sharded"), std::string::npos);
  alone.engine.unit(1).gather();
  EXPECT_EQ(error_of(use), "no error");
}

}  // namespace
}  // namespace phalanx
