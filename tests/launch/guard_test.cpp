#include "phalanx/launch/guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

namespace phalanx {
namespace {

// A process that does nothing, in a group of its own.
pid_t start_group() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    for (;;) pause();
  }
  setpgid(child, child);
  return child;
}

// The number of a group that has ended may be another's by the time the agent is killed.
TEST(Guard, KillsTheGroupsOfAKilledAgentButNotThoseThatEnded) {
  const pid_t ended = start_group(), running = start_group();
  const pid_t agent = fork();
  if (agent == 0) {
    Guard guard;
    guard.watch(ended), guard.watch(running);
    guard.forget(ended);
    _exit(0);  // without a word to the guard
  }
  int status = 0;
  waitpid(agent, &status, 0);
  EXPECT_EQ(status, 0);
  waitpid(running, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(waitpid(ended, &status, WNOHANG), 0);
  kill(ended, SIGKILL);
  waitpid(ended, &status, 0);
}

}  // namespace
}  // namespace phalanx
