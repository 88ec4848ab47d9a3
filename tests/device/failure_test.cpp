#include "phalanx/device/failure.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace phalanx {
namespace {

Error failure_of(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    return current_failure();
  }
  return Error(ExitCode::done, "nothing was thrown");
}

void expect(const Error& error, ExitCode code, const std::string& fragment) {
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
}

TEST(Failure, WhatIsNoErrorOfOursIsNeitherACheckThatFailedNorABacktrace) {
  expect(failure_of([] { fail(ExitCode::data, "a file"); }), ExitCode::data, "a file");
  expect(failure_of([] { throw std::out_of_range("vector"); }), ExitCode::environment, "vector");
  const Error memory = failure_of([] { throw std::bad_alloc(); });
  expect(memory, ExitCode::environment, "out of memory on the host: std::bad_alloc; end other");
  EXPECT_EQ(std::string(memory.what()).find("batch.micro"), std::string::npos)  // of any command
      << memory.what();
  const Error torch = failure_of([] { at::ones({2}).view({3}); });
  expect(torch, ExitCode::environment, "shape '[3]' is invalid");
  EXPECT_EQ(std::string(torch.what()).find("frame #"), std::string::npos) << torch.what();
}

TEST(Failure, AllocationsAreNamedWhereTheMachineRefusesThem) {
  const auto named = [](const std::function<void()>& make) {
    return failure_of([&] { allocate_named("unit blocks.3", make); });
  };
  expect(named([] { throw std::bad_alloc(); }), ExitCode::environment,
         "no memory for unit blocks.3: std::bad_alloc; lower batch.micro");
  const Error files = named([] { fail(ExitCode::environment, "too many open files; raise it"); });
  EXPECT_EQ(files.code(), ExitCode::environment);
  EXPECT_STREQ(files.what(), "cannot allocate unit blocks.3: too many open files; raise it");
  expect(named([] { fail(ExitCode::peer_lost, "rank 1 died"); }), ExitCode::peer_lost,
         "rank 1 died");
  expect(named([] { throw std::out_of_range("vector"); }), ExitCode::environment, "vector");
}

}  // namespace
}  // namespace phalanx
