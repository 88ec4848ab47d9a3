#include "phalanx/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace phalanx {
namespace {

TEST(Cores, AreThoseOfTheAffinityMask) {
  const pid_t child = fork();  // cannot be undone everywhere
  if (child == 0) {
    cpu_set_t mask;
    sched_getaffinity(0, sizeof(mask), &mask);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask) && kept++ > 0) CPU_CLR(cpu, &mask);
    sched_setaffinity(0, sizeof(mask), &mask);
    _exit(available_cores() == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace phalanx
