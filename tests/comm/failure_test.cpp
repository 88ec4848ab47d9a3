#include <ATen/ATen.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "phalanx/comm/history.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

struct Mismatch {
  const char* name;
  std::vector<std::string> fragments;
  std::function<Handle(Communicator&, bool odd)> issue;
};

const std::vector<Mismatch> mismatches{
    {"count",
     {"disagree", "all_gather of 8 Float", "all_gather of 9 Float"},
     [](Communicator& group, bool odd) {
       const int64_t count = odd ? 9 : 8;
       return group.all_gather(at::zeros({count * group.size()}), at::zeros({count}), test_call);
     }},
    {"dtype",
     {"disagree", "all_reduce of 8 Float", "all_reduce of 8 Int"},
     [](Communicator& group, bool odd) {
       return group.all_reduce(at::zeros({8}, odd ? at::kInt : at::kFloat), Op::sum, test_call);
     }},
    {"op",
     {"disagree", "(sum)", "(max)"},
     [](Communicator& group, bool odd) {
       return group.all_reduce(at::zeros({3000}), odd ? Op::max : Op::sum, test_call);
     }},
    {"collective",
     {"disagree", "reduce_scatter of 8 Float", "all_gather of 8 Float"},
     [](Communicator& group, bool odd) {
       auto whole = at::zeros({8 * group.size()}), part = at::zeros({8});
       return odd ? group.reduce_scatter(part, whole, Op::sum, test_call)
                  : group.all_gather(whole, part, test_call);
     }},
    {"order",
     {"disagree", "gradients of blocks.3", "gradients of blocks.4"},
     [](Communicator& group, bool odd) {
       const Call three{.unit = "blocks.3", .purpose = "gradients"};
       const Call four{.unit = "blocks.4", .purpose = "gradients"};
       auto first = group.all_reduce(at::zeros({8}), Op::sum, odd ? four : three);
       auto second = group.all_reduce(at::zeros({8}), Op::sum, odd ? three : four);
       first.wait();
       return second;
     }},
    {"root",
     {"disagree", "from rank 0", "from rank 1"},
     [](Communicator& group, bool odd) {
       return group.broadcast(at::zeros({8}), odd ? 1 : 0, test_call);
     }},
};

TEST(Failure, MismatchNamesBothSidesOnEveryRank) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (int ranks : {2, 4})
      for (const auto& mismatch : mismatches) {
        SCOPED_TRACE(text(mismatch.name, ", ", ranks, " ranks, transport ", int(transport)));
        run_ranks(ranks,
                  [&](World& world) {
                    auto group = world.group("dp", all_ranks(world));
                    group->barrier(test_call);
                    const int odd_rank = world.info().size / 2;
                    expect_error(ExitCode::peer_lost, mismatch.fragments, [&] {
                      mismatch.issue(*group, world.info().rank == odd_rank).wait();
                      group->barrier(test_call);
                    });
                    expect_error(ExitCode::peer_lost, {"disagree"},
                                 [&] { group->barrier(test_call); });
                  },
                  {.transport = transport, .call_deadline = seconds(10), .debug = true});
      }
}

TEST(Failure, UnevenSplitsThatDisagree) {
  run_ranks(2, [](World& world) {
    auto group = world.group("ep", all_ranks(world));
    const std::vector<int64_t> in{1, 2}, out{1, world.info().rank == 0 ? 1 : 2};
    expect_error(ExitCode::peer_lost, {"disagree", "all_to_all", "which expects"}, [&] {
      group->all_to_all(at::zeros({out[0] + out[1], 4}), out, at::zeros({3, 4}), in, test_call)
          .wait();
      group->barrier(test_call);
    });
  });
}

TEST(Failure, WrongArgumentsAreRefused) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    expect_error(ExitCode::usage, {"all_gather", "dp", "blocks.3", "7 Float"},
                 [&] { group->all_gather(at::zeros({7}), at::zeros({4}), test_call); });
    expect_error(ExitCode::usage, {"not contiguous"}, [&] {
      group->all_reduce(at::zeros({4, 4}).t().narrow(0, 0, 2), Op::sum, test_call);
    });
    expect_error(ExitCode::usage, {"cannot reduce", "Bool", "BFloat16"},
                 [&] { group->all_reduce(at::zeros({4}, at::kBool), Op::sum, test_call); });
    expect_error(ExitCode::usage, {"broadcast", "rank 2"},
                 [&] { group->broadcast(at::zeros({4}), 2, test_call); });
    expect_error(ExitCode::usage, {"send in group dp", "peer must be another"},
                 [&] { group->send(at::zeros({4}), world.info().rank, 0, test_call); });
    expect_error(ExitCode::usage, {"receive in group dp", "the tensor is not contiguous"}, [&] {
      group->receive(at::zeros({4, 4}).t(), 1 - world.info().rank, 0, test_call);
    });
    expect_error(ExitCode::usage, {"input is [2, 4] of Float", "output [2, 3] of Float"}, [&] {
      const std::vector<int64_t> each{1, 1};
      group->all_to_all(at::zeros({2, 3}), each, at::zeros({2, 4}), each, test_call);
    });
    expect_error(ExitCode::usage, {"all_to_all", "rows for itself"}, [&] {
      const std::vector<int64_t> in{1, 2}, out{2, 1};
      group->all_to_all(at::zeros({3, 4}), out, at::zeros({3, 4}), in, test_call);
    });
    auto window = group->allocate_window(64).view(at::kFloat);
    expect_error(ExitCode::usage, {"window", "this rank's part"},
                 [&] { group->all_gather(window, at::zeros({16}), test_call); });
    group->barrier(test_call);
  });
}

// What ranks other than `victim` meet when it dies, for all waits.
void check_death(Transport transport, int ranks, int victim,
                 const std::function<void(Communicator&)>& wait) {
  SCOPED_TRACE(text(ranks, " ranks, transport ", int(transport)));
  auto statuses = fork_ranks(
      ranks,
      [&](const WorldInfo& info) {
        auto world = World::join(info, {.transport = transport, .deadline = seconds(20)});
        auto group = world->group("dp", all_ranks(*world));
        group->barrier(test_call);
        if (info.rank == victim) {
          usleep(200000);
          kill(getpid(), SIGKILL);
        }
        const auto begin = steady_clock::now();
        expect_error(ExitCode::peer_lost, {text("rank ", victim), "died", "blocks.3", "parameters"},
                     [&] { wait(*group); });
        EXPECT_LT(seconds_since(begin), 3);
        return 0;
      },
      seconds(40));
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != victim)
      EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0) << rank;
}

TEST(Failure, KilledRankIsNamedSoon) {
  for (auto transport : {Transport::shared_memory, Transport::gloo}) {
    check_death(transport, 2, 1, [](Communicator& group) {
      group.all_reduce(at::zeros({4}), Op::sum, test_call).wait();
    });
    check_death(transport, 4, 2, [](Communicator& group) {
      auto whole = at::zeros({400000 * group.size()});
      group.all_gather(whole, whole.narrow(0, group.rank() * 400000, 400000), test_call).wait();
    });
    check_death(transport, 3, 0, [](Communicator& group) {
      group.all_reduce(at::zeros({400000}), Op::sum, test_call).wait();
    });
  }
  check_death(Transport::shared_memory, 2, 1,
              [](Communicator& group) { group.receive(at::zeros({4}), 1, 0, test_call).wait(); });
  check_death(Transport::shared_memory, 2, 1, [](Communicator& group) {
    group.broadcast(at::zeros({4000000}), 0, test_call).wait_inputs();
  });
}

TEST(Failure, StoppedRankIsNamedAtTheDeadline) {
  for (auto transport : {Transport::shared_memory, Transport::gloo}) {
    SCOPED_TRACE(int(transport));
    auto statuses = fork_ranks(
        3,
        [&](const WorldInfo& info) {
          auto world = World::join(info, {.transport = transport, .deadline = seconds(1)});
          auto group = world->group("dp", all_ranks(*world));
          group->all_reduce(at::zeros({16}), Op::sum, {.unit = "loss", .purpose = "norm"}).wait();
          auto process = at::full({1}, getpid(), at::kInt);
          group->broadcast(process, 1, test_call).wait();
          if (info.rank == 1) kill(getpid(), SIGSTOP);
          const auto begin = steady_clock::now();
          std::vector<std::string> fragments{"rank 1", "blocks.3", "parameters"};
          if (transport == Transport::shared_memory)
            fragments.insert(fragments.end(),
                             {"deadline of 1000 ms", "its last: call 2, broadcast"});
          expect_error(ExitCode::peer_lost, fragments, [&] {
            group->all_gather(at::zeros({12}), at::zeros({4}), test_call).wait();
          });
          EXPECT_LT(seconds_since(begin), 5);
          usleep(700000);  // the others meet it stopped, too
          kill(process.item<int>(), SIGKILL);
          return 0;
        },
        seconds(30));
    for (int rank : {0, 2})
      EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0) << rank;
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  }
}

// Rank 1 issues large calls, in each of which it has a part that only it can do, and stops.
TEST(Failure, OnlyTheRankThatStopsWithinACallIsNamed) {
  constexpr int64_t count = 1 << 20;
  struct Case {
    const char* name;
    bool allocated;
    std::function<Handle(Communicator&, const at::Tensor&, const Call&)> issue;
  };
  const auto all_reduce = [](Communicator& group, const at::Tensor& own, const Call& call) {
    return group.all_reduce(own, Op::sum, call);
  };
  const auto all_gather = [](Communicator& group, const at::Tensor& own, const Call& call) {
    return group.all_gather(at::zeros({count * group.size()}), own, call);
  };
  const auto broadcast = [](Communicator& group, const at::Tensor& own, const Call& call) {
    return group.broadcast(own, 1, call);
  };
  const std::vector<Case> cases{{"sum of private tensors", false, all_reduce},
                                {"sum of allocated tensors", true, all_reduce},
                                {"gather of private tensors", false, all_gather},
                                {"broadcast of a private tensor", false, broadcast}};
  auto statuses = fork_ranks(
      4,
      [&](const WorldInfo& info) {
        auto world = World::join(info, {.deadline = seconds(20)});
        auto process = at::full({1}, getpid(), at::kInt);
        world->group("all", all_ranks(*world))->broadcast(process, 1, test_call).wait();
        // During the first wait the ranks go as far in all calls as they can.
        Call call{.unit = "blocks.3", .purpose = "parameters", .deadline = milliseconds(1000)};
        std::vector<std::shared_ptr<Communicator>> groups;
        std::vector<Handle> handles;
        for (const Case& wanted : cases) {
          groups.push_back(world->group(wanted.name, all_ranks(*world)));
          const at::Tensor own = wanted.allocated
                                     ? groups.back()->allocate(count * 4).view(at::kFloat)
                                     : at::zeros({count});
          handles.push_back(wanted.issue(*groups.back(), own, call));
          call.deadline = milliseconds(100);
        }
        if (info.rank == 1) kill(getpid(), SIGSTOP);
        for (size_t i = 0; i < cases.size(); ++i) {
          SCOPED_TRACE(cases[i].name);
          try {
            handles[i].wait();
            ADD_FAILURE() << "no error";
          } catch (const Error& error) {
            const std::string said = error.what();
            EXPECT_NE(said.find("has not gone on in it: rank 1 (process"), std::string::npos)
                << said;
            for (const char* innocent : {"rank 0 (process", "rank 2 (process", "rank 3 (process"})
              EXPECT_EQ(said.find(innocent), std::string::npos) << said;
          }
        }
        usleep(300000);  // the others meet it stopped, too
        kill(process.item<int>(), SIGKILL);
        return 0;
      },
      seconds(30));
  for (int rank : {0, 2, 3})
    EXPECT_TRUE(WIFEXITED(statuses[rank]) && WEXITSTATUS(statuses[rank]) == 0) << rank;
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
}

TEST(Failure, ACallMayWaitLongerThanItsGroupDoes) {
  for (auto transport : {Transport::shared_memory, Transport::gloo}) {
    SCOPED_TRACE(int(transport));
    run_ranks(2,
              [](World& world) {
                auto group = world.group("dp", all_ranks(world));
                group->barrier(test_call);
                if (group->rank() == 1) usleep(1'400'000);
                const Call patient{
                    .unit = "checkpoint", .purpose = "verify", .deadline = seconds(30)};
                auto all = at::zeros({8}), own = at::full({4}, group->rank() + 1);
                auto told = at::full({4}, group->rank());
                const Handle gathered = group->all_gather(all, own.to(at::kFloat), patient);
                const Handle spread = group->broadcast(told, 1, patient);
                for (const Handle* handle : {&gathered, &spread}) {
                  handle->wait();
                  handle->wait_inputs();
                }
                EXPECT_EQ(all.sum().item<float>(), 12);
                EXPECT_EQ(told.sum().item<int64_t>(), 4);
              },
              {.transport = transport, .call_deadline = seconds(1)});
  }
}

TEST(Failure, LeavingEarlyIsNoErrorUnlessNeeded) {
  run_ranks(3, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    auto out = at::zeros({3, 1000}), in = at::full({1000}, float(world.info().rank));
    auto handle = group->all_gather(out, in, test_call);
    if (world.info().rank == 2) return;  // finished; what it sent is there
    usleep(300000);
    handle.wait();
    EXPECT_EQ(out[2].sum().item<float>(), 2000);
    const std::vector<int> rest{0, 1};
    auto pair = world.group("pair", rest);
    pair->barrier(test_call);
    expect_error(ExitCode::peer_lost, {"rank 2", "finished and left", "blocks.3"},
                 [&] { group->all_gather(out, in, test_call).wait(); });
  });
}

TEST(Failure, RankWithAnErrorOfItsOwnHoldsNobodyUp) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (bool sum : {false, true}) {
      SCOPED_TRACE(text(sum ? "all_reduce" : "all_gather", ", transport ", int(transport)));
      const auto statuses = fork_ranks(2, [&](const WorldInfo& info) {
        auto world = World::join(info, {.transport = transport, .deadline = seconds(30)});
        auto group = world->group("dp", all_ranks(*world));
        const auto issue = [&] {
          return sum ? group->all_reduce(at::zeros({400000}), Op::sum, test_call)
                     : group->all_gather(at::zeros({800000}), at::zeros({400000}), test_call);
        };
        if (info.rank == 1) {
          auto owed = issue();
          fail(ExitCode::data, "token file is broken");
        }
        const auto begin = steady_clock::now();
        expect_error(ExitCode::peer_lost,
                     {"rank 1", transport == Transport::gloo ? "Gloo: " : "error of its own"}, [&] {
                       issue().wait();
                       group->barrier(test_call);
                     });
        EXPECT_LT(seconds_since(begin), 2);
        return 0;
      });
      EXPECT_EQ(statuses[0], 0);
      EXPECT_TRUE(WIFEXITED(statuses[1]) && WEXITSTATUS(statuses[1]) == int(ExitCode::data))
          << statuses[1];
    }
}

TEST(Failure, AnAllocationEndsWithAPeerThatWillNotJoinIt) {
  for (bool abort : {false, true})
    for (bool window : {false, true}) {
      SCOPED_TRACE(text(abort ? "abort" : "close", window ? ", window" : ", buffer"));
      run_ranks(2, [&](World& world) {
        auto all = world.group("all", all_ranks(world));
        auto group = world.group("dp", all_ranks(world));
        if (group->rank() == 0) {
          usleep(50000);  // the other waits
          if (abort)
            group->abort("the data of step 7 is broken");
          else
            group.reset();
        } else {
          expect_error(ExitCode::peer_lost,
                       {abort ? "step 7 is broken (rank 0 said so)"
                              : "rank 0 has finished and left group dp while rank 1"},
                       [&] { window ? group->allocate_window(64) : group->allocate(64); });
        }
        all->barrier(test_call);
      });
    }
}

TEST(Failure, AbortEndsTheWaitsOfAll) {
  run_ranks(3, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    if (world.info().rank == 1) {
      usleep(200000);
      group->abort("the data of step 7 is broken");
      return;
    }
    const auto begin = steady_clock::now();
    expect_error(ExitCode::peer_lost, {"step 7 is broken", "rank 1"},
                 [&] { group->barrier(test_call); });
    EXPECT_LT(seconds_since(begin), 2);
  });
  auto statuses = fork_ranks(2, [](const WorldInfo& info) {
    auto world = World::join(info, {.transport = Transport::gloo, .deadline = seconds(20)});
    auto group = world->group("dp", all_ranks(*world));
    group->barrier(test_call);
    if (info.rank == 0) group->abort("enough");
    group->barrier(test_call);
    return 0;
  });
  for (int status : statuses) {
    EXPECT_FALSE(WIFSIGNALED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), int(ExitCode::peer_lost));
  }
}

}  // namespace
}  // namespace phalanx::testing
