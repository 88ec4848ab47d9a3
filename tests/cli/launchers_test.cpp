// Our own training under each launcher, and what becomes of it when ranks are killed or stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "phalanx/base/text.h"
#include "tests/support/process.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {
namespace {

using namespace std::chrono_literals;

struct Folder {
  std::string path = (std::filesystem::temp_directory_path() / unique_marker()).string();
  ~Folder() { std::filesystem::remove_all(path); }
};

// `phalanx train` of a model that takes milliseconds a step.
std::vector<std::string> training(const std::string& run_dir, int steps) {
  return {PHALANX_BINARY,
          "train",
          PHALANX_SOURCE_DIR "/configs/tiny.toml",
          "--model.hidden_size=32",
          "--model.num_hidden_layers=2",
          "--model.num_attention_heads=2",
          "--data.sequence_length=16",
          "--data.samples=64",
          "--batch.global=4",
          "--checkpoint.every=1000",
          text("--train.steps=", steps),
          "--train.log_every=1",
          "--train.run_dir=" + run_dir};
}

std::vector<std::string> joined(std::vector<std::string> first,
                                const std::vector<std::string>& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

// The same under `phalanx run`, which takes the command without the program's name.
std::vector<std::string> launched(const std::string& run_dir, int steps) {
  auto command = training(run_dir, steps);
  command.erase(command.begin());
  return joined({PHALANX_BINARY, "run", "--nproc-per-node", "2", "--"}, command);
}

std::vector<double> losses(const std::string& run_dir) {
  std::vector<double> found;
  std::ifstream file(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    found.push_back(nlohmann::json::parse(line)["loss"]);
  return found;
}

const ProgramOptions one_thread{.environment = {{"OMP_NUM_THREADS", "1"},
                                                {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}},
                                .deadline = 120s};

TEST(Launchers, TrainTheSameUnderAll) {
  const Folder reference;
  const auto run = run_program(launched(reference.path, 3), one_thread);
  ASSERT_EQ(run.code, 0) << run.error;
  ASSERT_EQ(losses(reference.path).size(), 3u) << run.error;
  const std::string torchrun = PHALANX_SOURCE_DIR "/.venv/bin/torchrun";
  for (const auto& launcher : std::vector<std::vector<std::string>>{
           {torchrun, "--no-python", "--nproc-per-node", "2"},
           {"mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo",
            "--mca", "btl", "self,vader", "-np", "2"}}) {
    SCOPED_TRACE(launcher[0]);
    const bool installed = run_program({"sh", "-c", "command -v " + launcher[0]}).code == 0;
    EXPECT_TRUE(installed) << "tools/install.sh test installs it";
    if (!installed) continue;
    const Folder folder;
    const auto other = run_program(joined(launcher, training(folder.path, 3)), one_thread);
    EXPECT_EQ(other.code, 0) << other.error << other.out;
    EXPECT_EQ(losses(folder.path), losses(reference.path));
  }
}

TEST(Launchers, CtrlCSavesAndTheSameCommandGoesOn) {
  const Folder folder;
  Program first(launched(folder.path, 1000000), one_thread);
  ASSERT_TRUE(first.wait_for("starting in"));
  while (losses(folder.path).size() < 3 && !processes_with(folder.path).empty())
    std::this_thread::sleep_for(20ms);
  first.signal(SIGINT);
  const auto stopped = first.finish();
  EXPECT_EQ(stopped.code, 75) << stopped.error;
  EXPECT_EQ(processes_with(folder.path).size(), 0u);
  const auto steps = losses(folder.path).size();
  const auto again = run_program(launched(folder.path, static_cast<int>(steps) + 2), one_thread);
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_TRUE(contains(again.error, text("after step ", steps))) << again.error;
  EXPECT_EQ(losses(folder.path).size(), steps + 2);
}

// Rank 1 of two, at a port where nobody listens.
TEST(Launchers, HowLongRanksWaitForEachOtherAtTheStartIsTheConfigs) {
  const Folder folder;
  auto options = one_thread;
  for (const auto& [name, value] : {std::pair{"RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", "1"}})
    options.environment.emplace_back(name, value);
  auto command = training(folder.path, 1);
  command.push_back("--train.join_deadline_s=0.4");
  const auto run = run_program(command, options);
  EXPECT_EQ(run.code, 3) << run.error;
  EXPECT_TRUE(contains(run.error,
                       "cannot reach rank 0's store at 127.0.0.1:1 within 400 ms "
                       "(train.join_deadline_s)"))
      << run.error;
}

TEST(Launchers, AKilledRankEndsTheRunInTimeAndIsNamed) {
  const Folder folder;
  Program run(launched(folder.path, 1000000), one_thread);
  ASSERT_TRUE(run.wait_for("starting in"));
  while (losses(folder.path).size() < 3 && !processes_with(folder.path).empty())
    std::this_thread::sleep_for(20ms);
  pid_t victim = 0;
  for (const pid_t process : processes_with(folder.path)) {
    std::string name;
    std::getline(std::ifstream(text("/proc/", process, "/comm")), name);
    if (name == "phalanx:1") victim = process;
  }
  ASSERT_GT(victim, 0);
  const auto start = std::chrono::steady_clock::now();
  kill(victim, SIGKILL);
  const auto ended = run.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 12s);  // 3.5 s, if nothing else runs
  EXPECT_EQ(ended.code, 137);
  EXPECT_TRUE(contains(ended.error, "rank 1 of 2 failed first: killed by signal 9")) << ended.error;
  EXPECT_TRUE(contains(ended.error, text("pid ", victim, ","))) << ended.error;
  EXPECT_EQ(processes_with(folder.path).size(), 0u);
}

#ifndef PHALANX_SANITIZED  // which needs terabytes of address space
TEST(Launchers, MemoryThatIsNotThereIsOneSentenceAndCode3) {
  const Folder folder;
  auto command = launched(folder.path, 1);
  for (const std::string key : {"hidden_size=128", "vocab_size=16777216"})
    command.push_back("--model." + key);  // an embedding of 8.6 GB
  const auto limited = joined({"sh", "-c", "ulimit -v 4000000; exec \"$@\"", "sh"}, command);
  const auto run = run_program(limited, one_thread);
  EXPECT_EQ(run.code, 3) << run.error;
  EXPECT_TRUE(contains(run.error, " failed first: exit code 3 (this machine: memory")) << run.error;
  EXPECT_TRUE(contains(run.error, "8590069760 bytes: Cannot allocate memory")) << run.error;
}
#endif

}  // namespace
}  // namespace phalanx::testing
