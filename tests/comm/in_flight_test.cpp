// Calls whose handles are dropped, and more calls than have room.
#include <ATen/ATen.h>
#include <unistd.h>

#include "phalanx/launch/pipe.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A place where one rank waits for another without going on with any call. Made before the ranks.
class Gate {
 public:
  void open() const { EXPECT_EQ(write(pipe_.write.get(), ".", 1), 1); }
  void pass() const {
    char one;
    EXPECT_EQ(read(pipe_.read.get(), &one, 1), 1);
  }

 private:
  Pipe pipe_ = make_pipe();
};

// Rank 0 stages its inputs in chunks, rank 1 has it all where peers read it: so a handle that rank
// 1 drops leaves rank 0 with chunks that nobody reads.
TEST(InFlight, ChunksOfADroppedCallDoNotOverwriteThoseOfTheNext) {
  constexpr int64_t count = 500000;  // more chunks than there are buffers
  struct Case {
    const char* name;
    int64_t in, out;
    std::function<Handle(Communicator&, const at::Tensor& out, const at::Tensor& in)> issue;
  };
  const std::vector<int64_t> splits{count, count};
  const std::vector<Case> cases{
      {"broadcast", count, 0,
       [](Communicator& group, const at::Tensor&, const at::Tensor& in) {
         return group.broadcast(in, 0, test_call);
       }},
      {"all_gather", count, 2 * count,
       [](Communicator& group, const at::Tensor& out, const at::Tensor& in) {
         return group.all_gather(out, in, test_call);
       }},
      {"reduce_scatter", 2 * count, count,
       [](Communicator& group, const at::Tensor& out, const at::Tensor& in) {
         return group.reduce_scatter(out, in, Op::max, test_call);
       }},
      {"all_to_all", 2 * count, 2 * count,
       [&](Communicator& group, const at::Tensor& out, const at::Tensor& in) {
         return group.all_to_all(out, splits, in, splits, test_call);
       }}};
  for (const Case& wanted : cases) {
    SCOPED_TRACE(wanted.name);
    const Gate dropped, staged;
    run_ranks(2, [&](World& world) {
      auto group = world.group("dp", all_ranks(world));
      const auto allocated = group->allocate(2 * wanted.in * 4).view(at::kFloat);
      const auto own = group->rank() == 0 ? at::zeros({2 * wanted.in}) : allocated;
      const auto first_in = own.narrow(0, 0, wanted.in).fill_(1);
      const auto second_in = own.narrow(0, wanted.in, wanted.in).fill_(group->rank() == 0 ? 3 : 2);
      const auto first_out = at::zeros({wanted.out}), second_out = at::zeros({wanted.out});
      auto first = wanted.issue(*group, first_out, first_in);
      auto second = wanted.issue(*group, second_out, second_in);
      if (group->rank() == 0) {
        dropped.pass();
        second.wait();  // stages the first chunks of the second call
        first.wait();
        staged.open();
      } else {
        first = Handle();
        dropped.open();
        staged.pass();
        second.wait();
        const auto got = wanted.out == 0 ? second_in : second_out.narrow(0, 0, count);
        EXPECT_EQ(got.min().item<float>(), 3);
        EXPECT_EQ(got.max().item<float>(), 3);
      }
      group->barrier(test_call);
    });
  }
}

TEST(InFlight, ChunksOfADroppedMessageDoNotOverwriteThoseOfTheNext) {
  constexpr int64_t count = 200000;
  const Gate sent, dropped;
  run_ranks(2, [&](World& world) {
    auto group = world.group("dp", all_ranks(world));
    if (group->rank() == 0) {
      auto first = group->send(at::full({count}, 1.f), 1, 1, test_call);
      auto second = group->send(at::full({count}, 2.f), 1, 2, test_call);
      sent.open();
      dropped.pass();
      second.wait_inputs();
    } else {
      const auto out = at::zeros({count});
      sent.pass();
      auto first = group->receive(at::zeros({count}), 0, 1, test_call);
      EXPECT_FALSE(first.done());  // takes the message
      first = Handle();
      auto second = group->receive(out, 0, 2, test_call);
      EXPECT_FALSE(second.done());
      dropped.open();
      usleep(50000);  // rank 0 fills all chunks first
      second.wait();
      EXPECT_EQ(out.min().item<float>(), 2);
      EXPECT_EQ(out.max().item<float>(), 2);
    }
    group->barrier(test_call);
  });
}

// Ranks 0 and 2 issue more calls than there are slots, and what they wait for is rank 1 alone.
TEST(InFlight, AWaitForAFreeSlotNamesWhoHoldsIt) {
  struct Case {
    const char* name;
    int calls_of_rank_1;
    const char* sentence;
  };
  for (const auto& [name, calls, sentence] : std::vector<Case>{
           {"it never came", 0, "did not arrive: rank 1 (process"},
           {"it came and has read nothing", 128, "has not gone on in it: rank 1 (process"}}) {
    SCOPED_TRACE(name);
    const Gate failed;
    run_ranks(3,
              [&, calls = calls, sentence = sentence](World& world) {
                auto group = world.group("dp", all_ranks(world));
                std::vector<Handle> handles;
                const auto issue = [&](int count) {
                  for (int i = 0; i < count; ++i)
                    handles.push_back(group->all_gather(at::zeros({6}), at::zeros({2}), test_call));
                };
                if (group->rank() == 1) {
                  issue(calls);
                  failed.pass();
                  failed.pass();
                  return;
                }
                try {
                  issue(129);
                  ADD_FAILURE() << "no error";
                } catch (const Error& error) {
                  expect_contains(error.what(), {"128 calls are in flight", sentence});
                  for (const char* innocent : {"rank 0 (process", "rank 2 (process"})
                    EXPECT_FALSE(contains(error.what(), innocent)) << error.what();
                }
                failed.open();
              },
              {.call_deadline = seconds(1)});
  }
}

TEST(InFlight, MoreMessagesThanHaveRoomInFlight) {
  run_ranks(2, [](World& world) {
    auto group = world.group("pp", all_ranks(world));
    constexpr int messages = 200, tags = 5;
    std::vector<at::Tensor> tensors;
    std::vector<Handle> handles;
    for (int i = 0; i < messages; ++i) {
      const int64_t count = i % 50 == 0 ? 40000 : 4;  // a large one travels in chunks
      tensors.push_back(at::full({count}, group->rank() == 0 ? float(i) : -1.f));
      handles.push_back(group->rank() == 0
                            ? group->send(tensors.back(), 1, i % tags, test_call)
                            : group->receive(tensors.back(), 0, i % tags, test_call));
    }
    for (int i = messages - 1; i >= 0; --i) {
      handles[size_t(i)].wait();
      EXPECT_TRUE(tensors[size_t(i)].eq(float(i)).all().item<bool>()) << "message " << i;
      handles[size_t(i)].wait_inputs();
    }
  });
}

TEST(InFlight, ASendWithoutRoomNamesWhoReceivesNothing) {
  const Gate failed;
  run_ranks(2, [&](World& world) {
    auto group = world.group("pp", all_ranks(world));
    if (group->rank() == 1) return failed.pass();
    const Call hasty{.unit = "stage 0", .purpose = "activations", .deadline = milliseconds(100)};
    for (int i = 0; i < 64; ++i) group->send(at::zeros({4}), 1, 0, hasty);
    expect_error(ExitCode::peer_lost,
                 {"send to rank 1", "64 messages to it are not received yet", "rank 1 (process"},
                 [&] { group->send(at::zeros({4}), 1, 0, hasty); });
    failed.open();
  });
}

// Were it not, each of these waits would take as long as a sleep may: longer than the test may.
TEST(InFlight, ASleepingRankIsWoken) {
  run_ranks(2,
            [](World& world) {
              auto group = world.group("dp", all_ranks(world));
              for (int round = 0; round < 600; ++round) {
                if (round % 2 == group->rank()) usleep(300);  // the other falls asleep
                group->barrier(test_call);
              }
            },
            {.deadline = seconds(15)});
}

}  // namespace
}  // namespace phalanx::testing
