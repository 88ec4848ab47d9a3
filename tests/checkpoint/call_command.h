#pragma once

// A command of the program, called in this process.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "phalanx/base/error.h"

extern "C" int phalanx_command_ckpt(int argc, char** argv);

namespace phalanx::testing {

struct Result {
  int code;
  std::string output;  // stdout, or the error's sentence
};

// arguments[0] is the command's name.
inline Result call(int (*command)(int, char**), std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  try {
    const int code = command(static_cast<int>(argv.size()), argv.data());
    return {code, ::testing::internal::GetCapturedStdout()};
  } catch (const Error& error) {
    ::testing::internal::GetCapturedStdout();
    return {static_cast<int>(error.code()), error.what()};
  }
}

// `phalanx ckpt` with these arguments.
inline Result ckpt(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ckpt");
  return call(phalanx_command_ckpt, std::move(arguments));
}

inline void expect(const Result& result, int code, const std::vector<std::string>& fragments) {
  EXPECT_EQ(result.code, code) << result.output;
  for (const auto& fragment : fragments)
    EXPECT_NE(result.output.find(fragment), std::string::npos)
        << "no '" << fragment << "' in " << result.output;
}

}  // namespace phalanx::testing
