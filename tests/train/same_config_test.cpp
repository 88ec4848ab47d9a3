// Ranks that were started with other configs or other data than rank 0.
#include <gtest/gtest.h>

#include <filesystem>

#include "phalanx/data/token_file.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

TEST(SameConfig, RanksWithDifferentConfigsAreRefusedOnAllOfThem) {
  run_ranks(3, [&](World& world) {
    Config config = small_config();
    if (world.info().rank == 2) config.train.seed = 7;
    config.train.threads = world.info().rank + 1;  // may differ
    try {
      Trainer trainer(config, borrowed(world));
      ADD_FAILURE() << "rank 2 has another seed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_EQ(std::string(error.what()),
                "rank 2 was started with train.seed = 7 and rank 0 with 0; give all ranks the same "
                "config");
    }
  });
}

// As a program does that trains and then evaluates, or trains again.
TEST(Trainer, ThereMayBeMoreThanOneInAWorld) {
  const Config config = small_config();
  for (const Transport transport : {Transport::shared_memory, Transport::gloo})
    run_ranks(2,
              [&](World& world) {
                const auto losses = [](Trainer& trainer) {
                  std::vector<double> found;
                  for (int step = 0; step < 3; ++step) found.push_back(trainer.train_step().loss);
                  return found;
                };
                std::vector<double> expected;
                {
                  Trainer before(config, borrowed(world));
                  expected = losses(before);
                }
                Trainer one(config, borrowed(world)), two(config, borrowed(world));
                EXPECT_EQ(losses(one), expected);
                EXPECT_EQ(losses(two), expected);
              },
              {.transport = transport});
}

// 71 tokens, the last of which is `last`.
std::string token_file(const std::string& path, int64_t last) {
  TokenFileWriter writer(path, "byte", 256);
  std::vector<int64_t> ids(71, 5);
  ids.back() = last;
  writer.add_document(ids);
  writer.finish();
  return path;
}

// What both ranks threw, if rank 1 has `theirs` where rank 0 has `ours`; empty if nothing.
std::string refusal(const std::vector<std::string>& ours, const std::vector<std::string>& theirs,
                    bool validation) {
  const std::string folder = temporary_folder();
  run_ranks(2, [&](World& world) {
    Config config = small_config();
    config.model.spec.vocab_size = 256;
    config.data.kind = DataKind::tokens;
    config.batch.global = 4;
    const auto& mine = world.info().rank == 0 ? ours : theirs;
    config.data.train = validation ? ours : mine;
    if (validation) config.data.validation = mine;
    std::string said;
    try {
      Trainer trainer(config, borrowed(world));
      trainer.train_step();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      said = error.what();
    }
    std::ofstream(text(folder, "/", world.info().rank)) << said;
  });
  const std::string said = read_file(folder + "/0", ExitCode::data);
  EXPECT_EQ(read_file(folder + "/1", ExitCode::data), said);
  return said;
}

TEST(SameConfig, RanksWithDifferentDataAreRefusedOnAllOfThem) {
  const std::string folder = temporary_folder();
  const std::string one = token_file(folder + "/one", 7), two = token_file(folder + "/two", 8);
  const std::string same = folder + "/copy";
  fs::copy_file(one, same);
  for (bool validation : {false, true}) {
    const std::string key = validation ? "data.validation" : "data.train";
    SCOPED_TRACE(key);
    EXPECT_EQ(refusal({one, two}, {same, two}, validation), "");  // elsewhere on another host
    EXPECT_EQ(refusal({one, two}, {one, one}, validation),
              text("rank 1 reads ", one, " (71 tokens) in ", key, " where rank 0 reads ", two,
                   " (71 tokens), and their contents differ; give all ranks the same data in the "
                   "same order"));
    EXPECT_EQ(refusal({one}, {one, two}, validation),
              text("rank 1 has 2 files in ", key, " and rank 0 1; give all ranks the same data"));
  }
  EXPECT_NE(refusal({one, two}, {two, one}, false), "");  // other samples in a step
}

}  // namespace
}  // namespace phalanx::testing
