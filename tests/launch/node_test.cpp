#include "phalanx/launch/node.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <functional>

#include "phalanx/base/error.h"
#include "phalanx/launch/signals.h"

namespace phalanx {
namespace {

// In a process of its own, for what cannot be undone. Returns waitpid()'s status.
int in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    for (int number : {SIGINT, SIGTERM, SIGUSR1}) signal(number, SIG_DFL);
    try {
      body();
    } catch (const Error& error) {
      _exit(static_cast<int>(error.code()));
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Node, TooFewDescriptorsAreAnErrorAndASoftLimitIsRaised) {
  auto with_limit = [](rlim_t soft, rlim_t hard, int needed) {
    return in_child([=] {
      const rlimit limit{soft, hard};
      setrlimit(RLIMIT_NOFILE, &limit);
      require_descriptors(needed, "a launch of 8 ranks");
      rlimit now{};
      getrlimit(RLIMIT_NOFILE, &now);
      _exit(now.rlim_cur >= static_cast<rlim_t>(needed) ? 0 : 1);
    });
  };
  EXPECT_EQ(with_limit(32, 32, 48), 3 << 8);
  EXPECT_EQ(with_limit(32, 64, 48), 0);
  EXPECT_EQ(with_limit(64, 64, 48), 0);
}

TEST(Signals, TheFirstAsksTheSecondInterruptEnds) {
  const int asked = in_child([] {
    install_signals();
    if (stop_requested() != 0 || saves_requested() != 0) _exit(1);
    raise(SIGUSR1);  // asks to save, not to stop
    raise(SIGUSR1);
    if (stop_requested() != 0 || saves_requested() != 2) _exit(2);
    raise(SIGTERM);
    raise(SIGTERM);  // launchers send it twice
    _exit(stop_requested() == SIGTERM ? 0 : 3);
  });
  EXPECT_EQ(asked, 0);
  const int ended = in_child([] {
    install_signals();
    raise(SIGINT);
    if (stop_requested() != SIGINT) _exit(1);
    raise(SIGINT);
  });
  EXPECT_TRUE(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGINT);
}

TEST(Signals, WhatIsIgnoredStaysIgnored) {
  const int status = in_child([] {
    signal(SIGINT, SIG_IGN);
    install_signals();
    raise(SIGINT);
    if (stop_requested() != 0) _exit(1);
    raise(SIGTERM);
    _exit(stop_requested() == SIGTERM ? 0 : 2);
  });
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace phalanx
