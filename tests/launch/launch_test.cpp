#include "phalanx/launch/launch.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "phalanx/base/descriptor.h"
#include "phalanx/base/error.h"

namespace phalanx {
namespace {

struct Launched {
  int status = 0;  ///< of the process that called launch(), as waitpid() gives it
  std::string error;
};

// launch() in a process of its own. What a rank throws must not come out of it, there or here.
Launched launch_apart(const LaunchOptions& options) {
  const Descriptor file(memfd_create("stderr", 0));
  const pid_t child = fork();
  if (child == 0) {
    dup2(file.get(), 1), dup2(file.get(), 2);
    const pid_t agent = getpid();
    try {
      _exit(launch(options));
    } catch (const std::exception& error) {
      const auto line = text(getpid() == agent ? "agent" : "rank", " threw: ", error.what(), "\n");
      _exit(write(2, line.data(), line.size()) > 0 ? 99 : 98);
    }
  }
  Launched ended;
  waitpid(child, &ended.status, 0);
  ended.error.resize(4096);
  ended.error.resize(size_t(pread(file.get(), ended.error.data(), ended.error.size(), 0)));
  return ended;
}

TEST(Launch, WhatARankThrowsEndsThatRank) {
  struct Case {
    std::function<int()> body;
    int code;
    std::string sentence;
  };
  for (const auto& [body, code, sentence] : std::vector<Case>{
           {[]() -> int { fail(ExitCode::data, "no tokens here"); }, 5, "error: no tokens here\n"},
           {[]() -> int { throw std::runtime_error("a surprise"); }, 3, "error: a surprise\n"}}) {
    SCOPED_TRACE(sentence);
    const auto ended = launch_apart({.ranks = 2, .own_command = true, .body = body});
    EXPECT_EQ(ended.status, code << 8) << ended.error;
    EXPECT_NE(ended.error.find(sentence), std::string::npos) << ended.error;
    EXPECT_NE(ended.error.find(text("failed first: exit code ", code)), std::string::npos)
        << ended.error;
    EXPECT_EQ(ended.error.find("threw: "), std::string::npos) << ended.error;
  }
}

// The process that would fork the ranks: nobody above it may catch it there.
TEST(Launch, WhatPreparingThrowsEndsTheRunBeforeItsRanks) {
  const auto ended =
      launch_apart({.ranks = 2,
                    .own_command = true,
                    .prepare = []() -> bool { throw std::runtime_error("a surprise"); },
                    .body = [] { return 0; }});
  EXPECT_EQ(ended.status, 3 << 8) << ended.error;
  EXPECT_NE(ended.error.find("error: a surprise\n"), std::string::npos) << ended.error;
  EXPECT_EQ(ended.error.find("threw: "), std::string::npos) << ended.error;
}

}  // namespace
}  // namespace phalanx
