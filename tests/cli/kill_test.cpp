// A run that is killed again and again ends as if it had never been.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <random>
#include <set>
#include <thread>

#include "phalanx/base/text.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

class KilledRuns {
 public:
  explicit KilledRuns(int steps) : steps(steps) {}
  const std::string path = temporary_folder();
  const int steps;

  std::vector<std::string> command(const std::string& run_dir, bool async) const {
    const std::string config = path + "/" + run_dir + ".toml";
    std::ofstream(config) << R"(
[model]
hidden_size = 12
num_hidden_layers = 2
num_attention_heads = 3
vocab_size = 64
max_position_embeddings = 8
resid_pdrop = 0.1
[data]
kind = "synthetic"
sequence_length = 8
samples = 48
[batch]
global = 4
[lr]
warmup_steps = 10
[checkpoint]
every = 3
[train]
log_every = 1
steps = )" << steps << "\nrun_dir = \""
                          << path << "/" << run_dir << "\"\n";
    return {PHALANX_BINARY,
            "run",
            "--nproc-per-node",
            "2",
            "--",
            "train",
            config,
            async ? "--checkpoint.async=true" : "--checkpoint.async=false"};
  }

  // Losses by step. Steps after the last save before a kill were made twice: every time with the
  // same loss. The line that was being written when the kill came may be torn.
  std::map<int64_t, std::set<double>> losses(const std::string& run_dir) const {
    std::map<int64_t, std::set<double>> found;
    std::ifstream file(path + "/" + run_dir + "/metrics.jsonl");
    for (std::string text; std::getline(file, text);) {
      const auto line = nlohmann::json::parse(text, nullptr, false);
      if (line.is_object()) found[line.at("step")].insert(line.at("loss").get<double>());
    }
    return found;
  }
};

std::string name_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

// `all`: of the launcher and its ranks; or one of the ranks, which ends the others.
void kill_some(const Program& program, const std::string& marker, bool all, std::mt19937& random) {
  auto processes = processes_with(marker);
  if (!all) {
    std::erase_if(processes, [&](pid_t process) {
      return process == program.pid() || name_of(process) == "phalanx guard";
    });
    if (!processes.empty()) processes = {processes[random() % processes.size()]};
  }
  for (pid_t process : processes) kill(process, SIGKILL);
}

TEST(Killed, ARunGoesOnBitForBitAfterSigkillAtRandomMoments) {
  const int rounds = std::getenv("PHALANX_SOAK") ? 50 : 3;
  const KilledRuns runs(rounds > 10 ? 200 : 60);
  const auto straight = run_program(runs.command("straight", false));
  ASSERT_EQ(straight.code, 0) << straight.error;
  const auto expected = runs.losses("straight");
  ASSERT_EQ(expected.size(), static_cast<size_t>(runs.steps));

  const auto seed = std::random_device{}();
  SCOPED_TRACE(text("seed ", seed));
  std::mt19937 random(seed);
  int killed = 0, run = 0;
  std::set<std::string> resumed_from;
  while (killed < rounds) {
    const std::string run_dir = text("broken-", run++);
    const auto command = runs.command(run_dir, run % 2 == 0);
    for (bool finished = false; !finished;) {
      Program program(command);
      // Of the time that a run takes from start to end: kills before the first step as well as
      // between two files of a save.
      if (killed < rounds) {
        const double share = 0.25 + 0.75 * double(random() % 1000) / 1000;
        std::this_thread::sleep_for(std::chrono::duration<double>(share * straight.seconds));
        kill_some(program, "/" + run_dir + ".toml", random() % 2 == 0, random);
      }
      const auto ended = program.finish();
      finished = ended.code == 0;
      ASSERT_NE(ended.code, -1) << "a rank that lost its peer did not end: " << ended.error;
      if (!finished) ASSERT_LT(killed++, rounds) << ended.error;
      EXPECT_TRUE(await_processes("/" + run_dir + ".toml", 0).empty()) << "left running";
      if (const size_t at = ended.error.find("resumed from "); at != std::string::npos)
        resumed_from.insert(ended.error.substr(at, ended.error.find('\n', at) - at));
    }
    EXPECT_TRUE(runs.losses(run_dir) == expected) << run_dir;
    const auto same =
        run_phalanx({"ckpt", "diff", runs.path + "/straight", runs.path + "/" + run_dir});
    EXPECT_EQ(same.code, 0) << same.out << same.error;
    EXPECT_NE(same.out.find(" 0 differ"), std::string::npos) << same.out;
    fs::remove_all(runs.path + "/" + run_dir);
  }
  if (rounds > 10) EXPECT_GT(resumed_from.size(), 10u) << "kills were too early to be resumed from";
}

}  // namespace
}  // namespace phalanx::testing
