#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "phalanx/comm/delayed.h"
#include "phalanx/comm/history.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/memory.h"
#include "phalanx/device/memory.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Issues a mix of calls of all sizes in two groups and waits for them in an order of its own.
void check_orders(World& world, bool gloo) {
  auto one = world.group("one", all_ranks(world)), two = world.group("two", all_ranks(world));
  const int size = one->size(), rank = one->rank();
  std::mt19937 own(static_cast<unsigned>(17 + rank));
  for (int round = 0; round < (gloo ? 4 : 12); ++round) {
    struct Item {
      at::Tensor out, in, expected;
      Handle handle;
    };
    std::vector<Item> items(gloo ? 20 : 60);
    for (size_t i = 0; i < items.size(); ++i) {
      auto& group = i % 3 == 0 ? *two : *one;
      auto& item = items[i];
      const int64_t count = int64_t(i) % 5 == 4   ? 150000
                            : int64_t(i) % 5 == 3 ? 20000
                                                  : 1 + int64_t(i);
      const float value = float(i + size_t(round));
      const bool symmetric = i % 4 == 1;
      auto make = [&](int64_t elements) {
        return symmetric ? group.allocate(elements * 4).view(at::kFloat) : at::empty({elements});
      };
      if (i % 7 < 3) {
        item.in = make(count).fill_(value + rank);
        item.out = at::empty({size * count});
        item.expected = (at::arange(size, at::kFloat) + value).repeat_interleave(count);
        item.handle = group.all_gather(item.out, item.in, test_call);
      } else if (i % 7 < 5) {
        item.in = make(size * count).fill_(value + rank);
        item.out = at::empty({count});
        item.expected = at::full({count}, size * value + float(size * (size - 1)) / 2);
        item.handle = group.reduce_scatter(item.out, item.in, Op::sum, test_call);
      } else {
        item.out = make(count).fill_(value + rank);
        item.expected = at::full({count}, size * value + float(size * (size - 1)) / 2);
        item.handle = group.all_reduce(item.out, Op::sum, test_call);
      }
    }
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), own);
    for (size_t i : order) {
      items[i].handle.wait();
      EXPECT_TRUE(items[i].handle.done());
      EXPECT_TRUE(at::equal(items[i].out, items[i].expected)) << "call " << i;
    }
    for (size_t i : order) items[i].handle.wait_inputs();
  }
}

TEST(Order, RanksMayWaitInDifferentOrders) {
  for (int ranks : {2, 3}) run_ranks(ranks, [](World& world) { check_orders(world, false); });
  run_ranks(3, [](World& world) { check_orders(world, true); }, {.transport = Transport::gloo});
}

TEST(Order, MoreCallsThanSlotsInFlight) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    const int rank = group->rank();
    std::vector<at::Tensor> outs;
    std::vector<Handle> handles;
    for (int i = 0; i < 500; ++i) {
      const int64_t count = i % 100 == 0 ? 200000 : 3000;
      outs.push_back(at::zeros({2 * count}));
      handles.push_back(
          group->all_gather(outs.back(), at::full({count}, float(i + rank)), test_call));
    }
    for (int i = 499; i >= 0; --i) {
      handles[size_t(i)].wait();
      EXPECT_EQ(outs[size_t(i)][0].item<float>(), float(i));
      EXPECT_EQ(outs[size_t(i)][-1].item<float>(), float(i + 1));
    }
  });
}

TEST(Order, DroppedHandlesHoldNobodyUp) {
  run_ranks(3, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    auto window = group->allocate_window(400).view(at::kFloat);
    for (int i = 0; i < 300; ++i) {
      const int64_t count = i % 3 == 0 ? 100000 : 100;
      auto in = group->allocate(400).view(at::kFloat).fill_(group->rank());
      auto whole = at::zeros({3 * count});
      auto gather = group->all_gather(whole, at::ones({count}), test_call);
      auto reduce = group->all_reduce(at::ones({count}), Op::sum, test_call);
      auto windowed =
          group->all_gather(window, window.narrow(0, group->rank() * 100, 100), test_call);
      auto symmetric = group->all_gather(at::zeros({300}), in, test_call);
      if (i % 3 == group->rank()) continue;  // drops them all
      gather.wait();
      EXPECT_EQ(whole.sum().item<float>(), float(3 * count));
      symmetric.wait_inputs();
      windowed.release();
      windowed.wait_inputs();
    }
    group->barrier(test_call);
  });
}

TEST(Order, WindowsAreNotOverwrittenWhileRead) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    auto window = group->allocate_window(4000).view(at::kFloat);
    auto mine = window.narrow(0, group->rank() * 1000, 1000);
    mine.fill_(1);
    auto handle = group->all_gather(window, mine, test_call);
    handle.wait();
    if (group->rank() == 0) {
      handle.release();
      handle.wait_inputs();
      mine.fill_(2);
    } else {
      usleep(100000);
      EXPECT_EQ(window[0].item<float>(), 1);
      handle.release();
    }
    group->barrier(test_call);
    EXPECT_EQ(window[0].item<float>(), 2);
  });
}

TEST(Order, InputsAreBusyUntilPeersHaveReadThem) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    auto in = group->allocate(40000).view(at::kFloat).fill_(1);
    auto out = at::zeros({20000});
    auto handle = group->all_gather(out, in, test_call);
    if (group->rank() == 0) {
      handle.wait_inputs();
      in.fill_(2);
    } else {
      usleep(100000);
      handle.wait();
      EXPECT_EQ(out.sum().item<float>(), 20000);
    }
  });
}

TEST(Ledger, CountsWhatWasReceived) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (int ranks : {2, 4})
      run_ranks(ranks,
                [](World& world) {
                  auto group = world.group("dp", all_ranks(world));
                  const int64_t n = group->size(), count = 16 * n * 100;
                  auto call = [](std::string_view purpose) {
                    return Call{.unit = "u", .purpose = purpose};
                  };
                  auto whole = at::zeros({n * count}), part = at::zeros({count});
                  group->all_gather(whole, part, call("parameters")).wait();
                  group->reduce_scatter(part, whole, Op::sum, call("gradients")).wait();
                  group->reduce_scatter(part, whole, Op::sum, call("gradients")).wait();
                  group->all_reduce(part, Op::sum, call("whole")).wait();
                  group->all_reduce(at::zeros({2}), Op::sum, call("norm")).wait();
                  group->broadcast(part, 0, call("start")).wait();
                  group->barrier(call("barrier"));
                  auto& ledger = world.ledger();
                  EXPECT_EQ(ledger.bytes("dp/parameters"), (n - 1) * count * 4);
                  EXPECT_EQ(ledger.bytes("dp/gradients"), 2 * (n - 1) * count * 4);
                  EXPECT_EQ(ledger.bytes("dp/whole"), 2 * (n - 1) * count * 4 / n);
                  EXPECT_EQ(ledger.bytes("dp/norm"), (n - 1) * 8);
                  EXPECT_EQ(ledger.bytes("dp/start"), group->rank() == 0 ? 0 : count * 4);
                  EXPECT_EQ(ledger.bytes("dp/barrier"), 0);
                  EXPECT_EQ(ledger.bytes("dp/fingerprints") > 0, group->transport() == "gloo");
                  int64_t total = 0;
                  for (const auto& [row, bytes] : ledger.snapshot()) total += bytes;
                  EXPECT_EQ(ledger.total(), total);
                  ledger.reset();
                  EXPECT_EQ(ledger.total(), 0);
                  group->all_gather(whole, part, call("parameters")).wait();
                  EXPECT_EQ(ledger.bytes("dp/parameters"), (n - 1) * count * 4);
                },
                {.transport = transport, .debug = true});
}

TEST(Ledger, SegmentsAreCharged) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    EXPECT_GT(segment_memory().control, 0);
    const auto before = rank_memory().current;
    {
      auto buffer = group->allocate(1000000), window = group->allocate_window(500000);
      EXPECT_EQ(segment_memory().buffers, 1000000);
      EXPECT_EQ(segment_memory().windows, 500000);
      EXPECT_EQ(rank_memory().current - before, 1500000);
      EXPECT_EQ(window.numel(), 1000000);
    }
    EXPECT_EQ(segment_memory().buffers + segment_memory().windows, 0);
    EXPECT_EQ(peak_segment_memory().buffers, 1000000);
    EXPECT_EQ(rank_memory().current, before);
  });
}

TEST(History, KeepsTheLastCalls) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    for (int i = 0; i < 300; ++i) group->all_reduce(at::zeros({2}), Op::sum, test_call).wait();
    auto handle = group->all_gather(at::zeros({8}), at::zeros({4}), test_call);
    const std::string last =
        "call 301 of group dp: all_gather for parameters of blocks.3, 32 bytes";
    expect_contains(last_calls(1), {last + ", in flight"});
    expect_contains(last_calls(2),
                    {"call 300 of group dp: all_reduce for parameters of blocks.3, 8 "
                     "bytes, complete",
                     last});
    const std::string all = last_calls(1000);
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), CallHistory::size);
    handle.wait();
    expect_contains(last_calls(1), {last + ", complete"});
  });
}

TEST(Delayed, CountsTheExposedPart) {
  run_ranks(2, [](World& world) {
    DelayedCommunicator group(world.group("dp", all_ranks(world)), milliseconds(500));
    auto out = at::zeros({8}), in = at::ones({4});
    auto behind = group.all_gather(out, in, test_call);
    EXPECT_FALSE(behind.done());
    usleep(600000);
    behind.wait();
    EXPECT_EQ(group.record().calls, 1);
    EXPECT_EQ(group.record().exposed, milliseconds(0));
    auto exposed = group.reduce_scatter(in, out, Op::sum, test_call);
    exposed.wait();
    EXPECT_GT(group.record().exposed, milliseconds(0));
    EXPECT_LE(group.record().exposed, milliseconds(500));
    EXPECT_EQ(group.record().total, milliseconds(1000));
    EXPECT_EQ(in[0].item<float>(), 2);
  });
}

// Random collectives for a while; PHALANX_SOAK_SECONDS makes it longer.
TEST(Soak, RandomCollectives) {
  const char* wanted = std::getenv("PHALANX_SOAK_SECONDS");
  const double limit = wanted ? std::atof(wanted) : 3;
  run_ranks(
      4,
      [limit](World& world) {
        auto group = world.group("dp", all_ranks(world));
        const int size = group->size(), rank = group->rank();
        std::mt19937 shared(7), own(static_cast<unsigned>(rank));
        auto window = group->allocate_window(64 * 4).view(at::kFloat);
        auto mine = window.narrow(0, rank * 64, 64);
        auto buffer = group->allocate(4 * 300000).view(at::kFloat);
        const auto begin = std::chrono::steady_clock::now();
        for (int round = 0;; ++round) {
          auto stop = at::full({1}, double(seconds_since(begin) > limit));
          group->all_reduce(stop, Op::max, test_call).wait();
          if (stop.item<float>() > 0) break;
          const int64_t count = int64_t(1) << (shared() % 18);
          const float value = float(shared() % 1000);
          if (own() % 16 == 0) usleep(own() % 2000);
          auto in = shared() % 2 ? buffer.narrow(0, 0, count) : at::empty({count});
          in.fill_(value + rank);
          const float sum = size * value + float(size * (size - 1)) / 2;
          switch (shared() % 5) {
            case 0: {
              auto out = at::empty({size, count});
              auto handle = group->all_gather(out, in, test_call);
              handle.wait();
              for (int other = 0; other < size; ++other)
                ASSERT_TRUE(out[other].eq(value + other).all().item<bool>());
              handle.wait_inputs();
              break;
            }
            case 1: {
              auto whole = at::full({size * count}, value + rank);
              auto handle = group->reduce_scatter(in, whole, Op::sum, test_call);
              handle.wait();
              ASSERT_TRUE(in.eq(sum).all().item<bool>());
              break;
            }
            case 2: {
              group->all_reduce(in, Op::sum, test_call).wait();
              ASSERT_TRUE(in.eq(sum).all().item<bool>());
              break;
            }
            case 3: {
              mine.fill_(value + rank);
              auto handle = group->all_gather(window, mine, test_call);
              handle.wait();
              for (int other = 0; other < size; ++other)
                ASSERT_TRUE(window.narrow(0, other * 64, 64).eq(value + other).all().item<bool>());
              handle.release();
              handle.wait_inputs();
              break;
            }
            default: {
              auto out = at::empty_like(in);
              auto sent = group->send(in, (rank + 1) % size, round, test_call);
              group->receive(out, (rank + size - 1) % size, round, test_call).wait();
              ASSERT_TRUE(out.eq(value + (rank + size - 1) % size).all().item<bool>());
              sent.wait_inputs();
            }
          }
        }
      },
      {.deadline = seconds(int(limit) + 60)});
}

}  // namespace
}  // namespace phalanx::testing
