#pragma once

// `phalanx run` from outside.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "phalanx/base/text.h"
#include "tests/support/process.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {

using namespace std::chrono_literals;

// The agent takes at most 3.5 s after a failure; the rest is for a machine that is busy with
// others.
inline constexpr double in_time = 12;

// `phalanx run --nproc-per-node RANKS -- sh -c SCRIPT marker`; the marker finds the processes.
inline std::vector<std::string> ranks_of(int ranks, const std::string& script,
                                         const std::string& marker = "sh") {
  return {"run", "--nproc-per-node", std::to_string(ranks), "--", "sh", "-c", script, marker};
}

inline std::vector<std::string> with_binary(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PHALANX_BINARY);
  return arguments;
}

// The last lines of stderr, between two rules.
inline std::string last_block(const std::string& error) {
  const std::string rule(72, '-');
  const size_t end = error.rfind(rule);
  const size_t begin = end == std::string::npos || end == 0 ? end : error.rfind(rule, end - 1);
  return begin == std::string::npos || end + rule.size() + 1 != error.size() ? ""
                                                                             : error.substr(begin);
}

}  // namespace phalanx::testing
