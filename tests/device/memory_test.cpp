#include "phalanx/device/memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "phalanx/device/device.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

// In processes of their own: the allocator is installed for a whole process.
void in_a_process(const std::function<void()>& body) {
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    count_memory();
    body();
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(Memory, CountsTensorsPeaksAndCharges) {
  in_a_process([] {
    constexpr int64_t kBytes = 10 << 20, kRounding = 16384;
    count_memory();  // again: nothing is counted twice
    const int64_t before = tensor_memory().current;
    at::Tensor one = at::zeros({kBytes}, at::kByte);
    EXPECT_NEAR(tensor_memory().current - before, kBytes, kRounding);
    {
      at::Tensor two = one + 1;
      EXPECT_NEAR(tensor_memory().current - before, 2 * kBytes, kRounding);
    }
    EXPECT_NEAR(tensor_memory().current - before, kBytes, kRounding);
    EXPECT_NEAR(tensor_memory().peak - before, 2 * kBytes, kRounding);
    reset_peak_memory();
    EXPECT_EQ(tensor_memory().peak, tensor_memory().current);
    charge_memory(kBytes);
    EXPECT_NEAR(rank_memory().peak - before, 2 * kBytes, kRounding);
    EXPECT_NEAR(tensor_memory().peak - before, kBytes, kRounding);
    charge_memory(-kBytes);
    one.reset();
    EXPECT_EQ(tensor_memory().current, before);
    EXPECT_EQ(rank_memory().current, tensor_memory().current);
  });
}

TEST(Memory, ProportionalSetGrowsWithTouchedPages) {
  in_a_process([] {
    constexpr int64_t kBytes = 32 << 20;
    at::ones({16}, at::kByte);  // code pages
    const int64_t before = proportional_set_bytes();
    at::Tensor touched = at::ones({kBytes}, at::kByte);
    EXPECT_NEAR(proportional_set_bytes() - before, kBytes, kBytes / 4);
  });
}

TEST(Memory, ThePoisoningDeviceShowsReadsOfReleasedMemory) {
  for (bool poison : {false, true}) {
    auto device = cpu_device(poison);
    at::Tensor buffer = device->allocate(device->compute(), 64, "buffer");
    const at::Tensor reader = buffer.view(at::kFloat);
    reader.fill_(3);
    device->free(device->compute(), buffer);
    EXPECT_EQ(reader.isnan().all().item<bool>(), poison);
  }
}

}  // namespace
}  // namespace phalanx
