#pragma once

#include <ATen/core/Tensor.h>
#include <dirent.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/comm/communicator.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {

const Call test_call{.unit = "blocks.3", .purpose = "parameters"};

inline std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(size_t(world.info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder itself
}

/// `act` must throw Error(code) whose sentence has every fragment.
inline void expect_error(ExitCode code, const std::vector<std::string>& fragments,
                         const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(int(error.code()), int(code)) << error.what();
    return expect_contains(error.what(), fragments);
  }
  ADD_FAILURE() << "no error; expected one with '" << fragments[0] << "'";
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace phalanx::testing
