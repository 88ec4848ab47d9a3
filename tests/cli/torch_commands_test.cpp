// What commands of libphalanx_torch.so throw, as `phalanx` gets it.
#include <gtest/gtest.h>

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/comm/world.h"
#include "tests/support/ranks.h"

extern "C" int phalanx_call_command(int (*function)(int, char**), int argc, char** argv);

namespace phalanx::testing {
namespace {

const WorldInfo* info = nullptr;  // a command is a plain function
ExitCode code{};

int six_calls_and_an_error(int, char**) {
  const auto world = World::join(*info);
  const auto group = group_of_all_ranks(*world, "all");
  for (const char* unit : {"one", "two", "three", "four", "five", "six"})
    group->barrier({.unit = unit, .purpose = "test"});
  fail(code, "rank 1 is gone");
}

TEST(TorchCommands, ShowTheLastCallsUnderTheErrorOfALostPeerAndOfNoOther) {
  for (const ExitCode wanted : {ExitCode::peer_lost, ExitCode::data}) {
    code = wanted;
    const auto statuses = fork_ranks(2, [](const WorldInfo& given) {
      info = &given;
      try {
        phalanx_call_command(six_calls_and_an_error, 0, nullptr);
      } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_EQ(error.code(), code);
        if (code != ExitCode::peer_lost) {
          EXPECT_EQ(said, "rank 1 is gone");
          return 0;
        }
        EXPECT_TRUE(said.starts_with("rank 1 is gone\nthe last calls of this rank:\n  call "));
        EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 5) << said;
        size_t at = 0;  // the newest is the last
        for (const char* unit : {"three", "four", "five", "six"}) {
          at = said.find(std::string("barrier for test of ") + unit, at);
          EXPECT_NE(at, std::string::npos) << unit << " in " << said;
        }
        return 0;
      }
      return 1;
    });
    EXPECT_EQ(statuses, std::vector<int>(2, 0));
  }
}

}  // namespace
}  // namespace phalanx::testing
