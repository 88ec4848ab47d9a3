#include "phalanx/device/recording.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace phalanx {
namespace {

// One step of what the engine does with a unit: gather into a buffer on a side stream, use it in
// compute, give it back; write a gradient in compute, reduce it on a side stream, reuse it.
struct Step {
  bool wait_after_gather = true, fence_before_free = true, wait_before_reduce = true,
       wait_before_reuse = true;

  double run(Device& device) const {
    const Stream compute = device.compute(), gather = device.stream("gather"),
                 reduce = device.stream("reduce");
    const at::Tensor shard = at::arange(16, at::kFloat);
    at::Tensor buffer = device.allocate(gather, 64, "weights");
    const at::Tensor weights = buffer.view(at::kFloat);
    device.launch(gather, "gather", {{buffer, true}}, [=] { at::Tensor(weights).copy_(shard); });
    if (wait_after_gather) device.wait(compute, device.record(gather));
    double result = at::mul(weights, 2).sum().item<double>();
    if (fence_before_free) device.wait(gather, device.record(compute));
    device.free(gather, buffer);

    at::Tensor gradient = device.allocate(compute, 64, "gradient").view(at::kFloat);
    gradient.fill_(1);
    if (wait_before_reduce) device.wait(reduce, device.record(compute));
    const at::Tensor out = at::zeros({16}, at::kFloat);
    device.launch(reduce, "reduce", {{gradient, false}}, [=] { at::Tensor(out).copy_(gradient); });
    const Event reduced = device.record(reduce);
    if (wait_before_reuse) device.wait(compute, reduced);
    gradient.fill_(5);
    device.wait(compute, reduced);
    return result + out.sum().item<double>();
  }
};

TEST(RecordingDevice, FindsNothingInACorrectStepAndEverySeededFault) {
  for (auto side : {RecordingDevice::Side::early, RecordingDevice::Side::late}) {
    SCOPED_TRACE(side == RecordingDevice::Side::late);
    {
      RecordingDevice device(side);
      EXPECT_EQ(Step{}.run(device), 240 + 16);
      EXPECT_TRUE(device.races().empty()) << device.races().front();
      EXPECT_GT(device.operator_accesses(), 0);
    }
    const auto expect_race = [&](const Step& step, const std::string& what) {
      RecordingDevice device(side);
      step.run(device);
      ASSERT_FALSE(device.races().empty()) << "no race found where " << what;
      EXPECT_NE(device.races().front().find(what), std::string::npos) << device.races().front();
    };
    expect_race({.wait_after_gather = false}, "is not ordered after the write by gather");
    expect_race({.fence_before_free = false},
                "free on stream gather is not ordered after the read");
    expect_race({.wait_before_reduce = false}, "reduce on stream reduce is not ordered after");
    expect_race({.wait_before_reuse = false}, "is not ordered after the read by reduce");
  }
}

TEST(RecordingDevice, LateWorkShowsWrongValuesWhereAWaitIsMissing) {
  RecordingDevice device(RecordingDevice::Side::late);
  EXPECT_NE(Step{.wait_after_gather = false}.run(device), 240 + 16);
}

TEST(CpuDevice, RunsTheSameStep) { EXPECT_EQ(Step{}.run(*cpu_device()), 240 + 16); }

}  // namespace
}  // namespace phalanx
