// The example of a loop that outlives what happens to it, stopped and killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <memory>
#include <thread>

#include "phalanx/base/text.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {
namespace {

constexpr const char* steps = "600";

std::vector<std::string> command(int ranks, const std::string& folder,
                                 const std::string& until = steps) {
  const std::string binary = PHALANX_BINARY;
  const std::string build = binary.substr(0, binary.rfind('/'));
  return {binary,
          "run",
          "--nproc-per-node",
          std::to_string(ranks),
          "--",
          build + "/examples/example_fault_tolerant",
          folder,
          until};
}

TEST(Examples, TheFaultTolerantLoopEndsAsIfNothingHadHappened) {
  const std::string folder = temporary_folder(), straight = folder + "/straight",
                    broken = folder + "/broken";
  const std::string all = text("every sample was seen once: ", 48 * std::stoll(steps));
  const auto whole = run_program(command(2, straight));
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_NE(whole.out.find("after step 0\n"), std::string::npos) << whole.out;
  EXPECT_NE(whole.out.find(all), std::string::npos) << whole.out;

  const auto latest = [&] {
    std::ifstream file(broken + "/latest");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto start_and_await_save = [&] {
    const std::string before = latest();
    auto program = std::make_unique<Program>(command(2, broken));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (latest() == before && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_NE(latest(), before);
    return program;
  };
  {  // SIGTERM: saves, exit code 75
    const auto program = start_and_await_save();
    program->signal(SIGTERM);
    EXPECT_EQ(program->finish().code, 75);
  }
  {  // SIGKILL of everything
    const auto program = start_and_await_save();
    for (pid_t process : processes_with(broken)) kill(process, SIGKILL);
    EXPECT_NE(program->finish().code, 0);
  }
  const auto rest = run_program(command(2, broken));
  EXPECT_EQ(rest.code, 0) << rest.error;
  EXPECT_EQ(rest.out.find("after step 0\n"), std::string::npos) << rest.out;
  EXPECT_NE(rest.out.find(all), std::string::npos) << rest.out;
  const auto same = run_phalanx({"ckpt", "diff", straight, broken});
  EXPECT_EQ(same.code, 0) << same.out << same.error;
}

// 48 samples per step.
TEST(Examples, TheFaultTolerantLoopLosesNoSampleWhereRanksDoNotDivideThem) {
  const auto run = run_program(command(5, temporary_folder() + "/run", "12"));
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_NE(run.out.find("every sample was seen once: 576"), std::string::npos) << run.out;
}

TEST(Examples, TheFaultTolerantLoopNeedsNoArguments) {
  const std::string folder = temporary_folder(), example = command(1, "", "")[5];
  const auto run = run_program({"sh", "-c", "cd " + folder + " && exec " + example});
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_NE(run.out.find("every sample was seen once: 4800"), std::string::npos) << run.out;
}

}  // namespace
}  // namespace phalanx::testing
