#include "phalanx/launch/failure.h"
#include "tests/support/sentence.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace phalanx {
namespace {

using testing::contains;

int left(int code) { return code << 8; }  // the kernel's encoding
int killed(int signal) { return signal; }

TEST(Failure, StatusesAreSaidInWords) {
  EXPECT_EQ(describe_status(left(5), true), "exit code 5 (data: token files)");
  EXPECT_EQ(describe_status(left(5), false), "exit code 5");  // another program's own meaning
  EXPECT_EQ(describe_status(left(42), true), "exit code 42");
  EXPECT_EQ(describe_status(killed(SIGSEGV), false),
            "killed by signal 11 (SIGSEGV: Segmentation fault)");
  EXPECT_TRUE(contains(describe_status(killed(SIGKILL), true), "when memory runs out"));
  EXPECT_EQ(exit_code_of(left(7)), 7);
  EXPECT_EQ(exit_code_of(killed(SIGKILL)), 137);
}

TEST(Failure, ALostPeerIsNotTheCause) {
  const RankEnd lost{0, 10, left(4), 1.0}, also_lost{2, 12, left(4), 1.1},
      dead{1, 11, killed(SIGKILL), 1.2};
  EXPECT_EQ(root_cause({lost, also_lost, dead}).rank, 1);
  EXPECT_EQ(root_cause({dead, lost}).rank, 1);
  EXPECT_EQ(root_cause({lost, also_lost}).rank, 0);  // all lost one: the first
}

TEST(Failure, TheBlockNamesRankReasonAndLastLines) {
  const std::string block =
      failure_block({1, 4711, left(6), 12.34}, 4, true, {"loading", "error: step-3 is cut"},
                    {{0, 4710, left(4), 12.4}}, "logs/rank-1.log");
  for (const auto* part :
       {"rank 1 of 4 failed first: exit code 6 (checkpoint files)\n", "pid 4711, 12.3 s after",
        "\n    error: step-3 is cut\n", "then rank 0: exit code 4 (another rank was lost)",
        "all it wrote: logs/rank-1.log\n"})
    EXPECT_TRUE(contains(block, part)) << block;
  EXPECT_TRUE(contains(failure_block({0, 1, left(1), 0}, 1, true, {}, {}, ""), "wrote nothing"));
}

}  // namespace
}  // namespace phalanx
