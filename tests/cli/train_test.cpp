// train, eval, verify and generate from outside.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "phalanx/base/files.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

// A folder with a config in it; run_dir is in the folder too.
class Folder {
 public:
  std::string path = temporary_folder();
  std::string config = path + "/run.toml", run_dir = path + "/run";

  explicit Folder(const std::string& more = "") {
    std::ofstream(config) << R"(
[model]
hidden_size = 12
num_hidden_layers = 2
num_attention_heads = 3
vocab_size = 256
max_position_embeddings = 8
[data]
kind = "synthetic"
sequence_length = 8
samples = 48
[batch]
global = 12
[precision]
compute = "float64"
master = "float64"
reduce = "float64"
[lr]
peak = 1e-2
[checkpoint]
every = 4
[train]
steps = 8
log_every = 1
run_dir = ")" << run_dir << "\"\n"
                          << more;
  }
  std::vector<double> losses() const { return metric(run_dir, "loss"); }
};

std::vector<std::string> on_ranks(int ranks, std::vector<std::string> command) {
  std::vector<std::string> all = {"run", "--nproc-per-node", std::to_string(ranks), "--"};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

std::vector<std::string> with_binary(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PHALANX_BINARY);
  return arguments;
}

TEST(TrainCommand, SigtermSavesAndExits75AndTheSameCommandGoesOn) {
  const Folder straight, broken;
  const std::vector<std::string> more = {"--train.steps=400", "--checkpoint.every=1000",
                                         "--train.log_every=1"};
  auto command = [&](const Folder& folder) {
    std::vector<std::string> arguments = {"train", folder.config};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return with_binary(on_ranks(2, arguments));
  };
  ASSERT_EQ(run_program(command(straight)).code, 0);
  {
    Program program(command(broken));
    ASSERT_TRUE(program.wait_for("step 20/400"));
    program.signal(SIGTERM);
    const auto stopped = program.finish();
    EXPECT_EQ(stopped.code, 75) << stopped.error;
    EXPECT_TRUE(contains(stopped.error, "and saved; the same command goes on")) << stopped.error;
  }
  const size_t done = broken.losses().size();
  EXPECT_LT(done, 400u);
  const auto rest = run_program(command(broken));
  EXPECT_EQ(rest.code, 0) << rest.error;
  EXPECT_TRUE(contains(rest.error, "after step " + std::to_string(done))) << rest.error;
  EXPECT_EQ(broken.losses(), straight.losses());
  const auto again = run_program(command(broken));
  EXPECT_EQ(again.code, 0);
  EXPECT_TRUE(contains(again.error, "has finished its 400 steps; train on with --train.steps=800"))
      << again.error;
}

TEST(TrainCommand, Sigusr1SavesAndTrainingGoesOn) {
  const Folder folder;
  Program program(with_binary(
      on_ranks(2, {"train", folder.config, "--train.steps=400", "--checkpoint.every=1000"})));
  ASSERT_TRUE(program.wait_for("step 20/400"));
  program.signal(SIGUSR1);
  ASSERT_TRUE(program.wait_for("saved "));
  const auto run = program.finish();
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_TRUE(contains(run.error, "step 400/400"));
  size_t saved = 0;
  for (size_t at = 0; (at = run.error.find("saved ", at)) != std::string::npos; ++at) ++saved;
  EXPECT_EQ(saved, 2u) << run.error;
  EXPECT_TRUE(fs::exists(folder.run_dir + "/checkpoints/step-400"));
}

TEST(TrainCommand, ASecondRunInTheSameFolderIsRefused) {
  const Folder folder;
  Program first(with_binary(on_ranks(2, {"train", folder.config, "--train.steps=100000",
                                         "--checkpoint.every=20", "--checkpoint.keep=0"})));
  ASSERT_TRUE(first.wait_for("step 20/100000"));
  const auto second = run_phalanx({"train", folder.config, "--train.steps=50"});
  EXPECT_EQ(second.code, 6) << second.error;
  for (const std::string fragment : {"another process writes in ", "host ", "process ", "since 20"})
    EXPECT_TRUE(contains(second.error, fragment)) << second.error;
  EXPECT_EQ(run_phalanx({"eval", folder.config}).code, 0);  // reading needs no lock
  first.signal(SIGTERM);
  EXPECT_EQ(first.finish().code, 75);
  EXPECT_TRUE(contains(read_file(folder.run_dir + "/config.toml", ExitCode::usage), "100000"));
}

// Its checkpoints come and go while the first run lives, so they are not even looked at.
TEST(TrainCommand, ASecondRunIsRefusedBeforeItLoadsAnything) {
  const Folder folder;
  Program first(
      with_binary({"train", folder.config, "--train.steps=1000000", "--checkpoint.every=20"}));
  ASSERT_TRUE(first.wait_for("saved "));
  for (const std::string wrong : {"--model.hidden_size=24", "--train.resume=/nonexistent"}) {
    const auto second = run_phalanx({"train", folder.config, wrong});
    EXPECT_EQ(second.code, 6) << second.error;
    EXPECT_TRUE(contains(second.error, "another process writes in ")) << second.error;
  }
}

TEST(TrainCommand, BadInputsAreOneSentenceWithTheExitCode) {
  const Folder folder;
  ASSERT_EQ(run_phalanx({"train", folder.config}).code, 0);
  const std::string tokens = folder.path + "/text.tokens", text = folder.path + "/text.txt";
  std::ofstream(text) << std::string(90, 'x');
  ASSERT_EQ(run_phalanx({"data", "tokenize", "-o", tokens, text}).code, 0);
  const std::string from_tokens = "--data.train=" + tokens;
  struct Case {
    std::vector<std::string> more;
    int ranks, code;
    std::vector<std::string> said;
  };
  for (const auto& [more, ranks, code, said] : std::vector<Case>{
           {{"--batch.global=7"}, 2, 2, {"batch.global = 7", "2 (data-parallel ranks)", "8"}},
           {{"--parallel.dp_shard=3"}, 2, 2, {"dp_shard 3", "world of 2 ranks"}},
           {{"--train.stepz=3"}, 1, 2, {"train.stepz", "train.steps"}},
           {{"--data.samples=10"}, 2, 2, {"data.samples = 10", "batch.global = 12"}},
           {{"--data.kind=tokens", from_tokens}, 1, 5, {"11 samples", "batch.global = 12"}},
           {{"--data.kind=tokens", from_tokens, "--model.vocab_size=100", "--batch.global=2"},
            1,
            2,
            {"model.vocab_size = 100", "256 ids"}},
           {{"--data.kind=tokens", "--data.train=/nonexistent.tokens"},
            2,
            5,
            {"/nonexistent.tokens", "No such file"}},
           {{"--model.hidden_size=24", "--train.steps=9"}, 2, 6, {"checkpoints/step-8", "wte"}},
           {{"--train.resume=/nonexistent"}, 1, 6, {"no checkpoint in /nonexistent"}},
           {{"--train.run_dir=/proc/none"}, 1, 3, {"/proc/none"}}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    std::vector<std::string> command = {"train", folder.config};
    command.insert(command.end(), more.begin(), more.end());
    const auto run = run_phalanx(ranks == 1 ? command : on_ranks(ranks, command));
    EXPECT_EQ(run.code, code) << run.error;
    for (const auto& fragment : said) EXPECT_TRUE(contains(run.error, fragment)) << run.error;
    EXPECT_EQ(run.out, "");
    if (ranks == 2 && code == 2) {  // what is wrong with the config is said once
      EXPECT_EQ(run.error.find("error: "), run.error.rfind("error: ")) << run.error;
      EXPECT_FALSE(contains(run.error, "failed first")) << run.error;
    }
    if (ranks == 1) {
      const size_t begin = run.error.find("error: ");
      ASSERT_NE(begin, std::string::npos) << run.error;
      EXPECT_EQ(run.error.find('\n', begin), run.error.size() - 1) << run.error;
    }
  }
  const auto missing = run_phalanx({"train", folder.path + "/none.toml"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(contains(missing.error, "none.toml")) << missing.error;
}

TEST(TrainCommand, StoppedWithoutCheckpointsItSaysSoAndIsNoFailure) {
  const Folder folder;
  for (const auto& [signal, code] : {std::pair{SIGTERM, 143}, {SIGINT, 130}}) {
    Program program(with_binary(
        on_ranks(2, {"train", folder.config, "--train.steps=1000000", "--checkpoint.every=0"})));
    ASSERT_TRUE(program.wait_for("step 20/"));
    program.signal(signal);
    const auto stopped = program.finish();
    EXPECT_EQ(stopped.code, code) << stopped.error;
    EXPECT_TRUE(contains(stopped.error, "; nothing was saved (checkpoint.every = 0)"));
    EXPECT_FALSE(contains(stopped.error, "failed first")) << stopped.error;
  }
}

TEST(TrainCommand, AnExplodingLossStopsWithTheStepOnEveryRank) {
  const Folder folder;
  const auto run = run_phalanx(
      on_ranks(2, {"train", folder.config, "--optimizer.kind=sgd", "--optimizer.clip_norm=0",
                   "--lr.peak=1e200", "--lr.schedule=constant"}));
  EXPECT_EQ(run.code, 1) << run.error;
  EXPECT_TRUE(contains(run.error, ": the loss is ")) << run.error;
  EXPECT_TRUE(contains(run.error, "error: step ")) << run.error;
}

TEST(EvalCommand, IsTheSameOnAnyNumberOfRanks) {
  const Folder folder;
  ASSERT_EQ(run_phalanx(on_ranks(2, {"train", folder.config, "--data.samples=112"})).code, 0);
  nlohmann::json first;
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    // 7 validation samples: no number of ranks divides them, and three do not divide the batch.
    const auto run = run_phalanx(
        on_ranks(ranks, {"eval", folder.config, "--data.samples=112", "--batch.global=8"}));
    ASSERT_EQ(run.code, 0) << run.error;
    ASSERT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
    const auto line = nlohmann::json::parse(run.out);
    EXPECT_EQ(line["step"], 8);
    EXPECT_EQ(line["samples"], 7);
    EXPECT_EQ(line["tokens"], 7 * 8);
    EXPECT_NEAR(line["perplexity"], std::exp(line["loss"].get<double>()), 1e-9);
    if (ranks == 1)
      first = line;
    else
      EXPECT_NEAR(line["loss"], first["loss"], 1e-12);
  }
  const auto wrong = run_phalanx(on_ranks(
      2, {"eval", folder.config, "--data.kind=tokens", "--parallel.dp_shard=3", "--lr.peek=1"}));
  EXPECT_EQ(wrong.code, 2);
  for (const std::string said : {"data.validation is missing", "'lr.peek'", "world of 2 ranks"})
    EXPECT_TRUE(contains(wrong.error, said)) << wrong.error;
  const Folder empty;
  const auto none = run_phalanx({"eval", empty.config});
  EXPECT_EQ(none.code, 6);
  EXPECT_TRUE(contains(none.error, "there is no checkpoint in " + empty.run_dir)) << none.error;
}

TEST(VerifyCommand, StartsItsRanksOrTakesThoseOfALauncher) {
  const Folder folder;
  const auto equal = run_phalanx({"verify", folder.config, "--steps", "2", "--batch.micro=2"});
  EXPECT_EQ(equal.code, 0) << equal.error;
  EXPECT_TRUE(contains(equal.out, "adamw      parameter")) << equal.out;
  EXPECT_TRUE(contains(equal.out, "equal: this layout computes what one rank computes"));

  const auto single = run_phalanx(
      {"verify", folder.config, "--dtype", "float32", "--ranks", "3", "--steps", "2", "--json"});
  EXPECT_EQ(single.code, 0) << single.error << single.out;
  const auto line = nlohmann::json::parse(single.out);
  EXPECT_EQ(line["equal"], true);
  EXPECT_EQ(line["ranks"], 3);
  EXPECT_EQ(line["differences"].size(), 4u);

  const auto planted =
      run_phalanx(on_ranks(2, {"verify", folder.config, "--steps", "1", "--plant-error", "0.01",
                               "--parallel.strategy=none"}));
  EXPECT_EQ(planted.code, 1) << planted.error;
  EXPECT_TRUE(contains(planted.out, "DIFFERS")) << planted.out;
  EXPECT_TRUE(contains(planted.out, "different: the ")) << planted.out;

  const std::string command = text("exec ", PHALANX_BINARY, " verify ", folder.config);
  const auto different =
      run_phalanx(on_ranks(2, {"sh", "-c", command + " --steps 1 --train.seed=$RANK"}));
  EXPECT_EQ(different.code, 2) << different.error;
  EXPECT_TRUE(contains(different.error, "rank 1 was started with train.seed = 1 and rank 0 with 0"))
      << different.error;

  EXPECT_EQ(run_phalanx({"verify", folder.config, "--ranks", "5"}).code, 2);
  const auto huge = run_phalanx(
      {"verify", folder.config, "--parallel.dp_shard=1048576", "--parallel.tp=1048576"});
  EXPECT_EQ(huge.code, 2);
  EXPECT_TRUE(contains(huge.error, "more than 1024 ranks")) << huge.error;
  const auto no_data = run_phalanx(
      {"verify", folder.config, "--data.kind=tokens", "--data.train=/nonexistent.tokens"});
  EXPECT_EQ(no_data.code, 5) << no_data.error;
  EXPECT_TRUE(contains(no_data.error, "the reference on one rank: cannot open /nonexistent.tokens"))
      << no_data.error;
}

TEST(GenerateCommand, ContinuesAPromptFromACheckpointOrARun) {
  const Folder folder;
  ASSERT_EQ(run_phalanx({"train", folder.config}).code, 0);
  const std::vector<std::string> command = {"generate", "--prompt", "int ",
                                            "--tokens", "20",       "--checkpoint"};
  auto from = [&](const std::string& path, const std::string& seed) {
    auto all = command;
    all.insert(all.end(), {path, "--seed", seed});
    return run_phalanx(all);
  };
  const auto run = from(folder.run_dir, "1");
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_EQ(run.out.rfind("int ", 0), 0u);
  EXPECT_GE(run.out.size(), 4u + 1u);
  EXPECT_EQ(from(folder.run_dir + "/checkpoints/step-8", "1").out, run.out);
  EXPECT_NE(from(folder.run_dir, "2").out, run.out);
  EXPECT_EQ(from(folder.path + "/nothing", "1").code, 6);
  for (const char* temperature : {"nan", "inf", "-1"}) {
    auto all = command;
    all.insert(all.end(), {folder.run_dir, "--temperature", temperature});
    const auto refused = run_phalanx(all);
    EXPECT_EQ(refused.code, 2) << refused.error;
    EXPECT_EQ(refused.out, "");
    EXPECT_TRUE(contains(refused.error, "--temperature")) << refused.error;
  }
  const auto model = run_phalanx({"generate", "--prompt", "x", "--model", folder.path});
  EXPECT_EQ(model.code, 6);
  EXPECT_TRUE(contains(model.error, "holds no tensors")) << model.error;
  EXPECT_TRUE(contains(run_phalanx({"generate", "--prompt", "x"}).error, "give --checkpoint"));
}

}  // namespace
}  // namespace phalanx::testing
