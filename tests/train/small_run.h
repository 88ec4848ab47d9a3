#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "phalanx/base/files.h"
#include "phalanx/base/text.h"
#include "phalanx/comm/world.h"
#include "phalanx/config/config.h"
#include "phalanx/train/run.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {

/// A run small enough for hundreds of steps per second, with sizes that nothing divides evenly.
inline Config small_config(Dtype dtype = Dtype::float64) {
  Config config;
  ModelSpec& model = config.model.spec;
  model.hidden_size = 12;
  model.num_hidden_layers = 3;
  model.num_attention_heads = 3;
  model.num_key_value_heads = 3;
  model.intermediate_size = 20;
  model.vocab_size = 29;
  model.max_position_embeddings = 7;
  config.data.kind = DataKind::synthetic;
  config.data.sequence_length = 7;
  config.data.samples = 50;
  config.batch.global = 18;
  config.parallel.compute = config.parallel.master = config.parallel.reduce_dtype = dtype;
  config.lr.peak = 1e-2;
  config.lr.warmup_steps = 2;
  config.train.steps = 6;
  config.train.log_every = 1;
  config.checkpoint.every = 3;
  return config;
}

/// For interfaces that share ownership of a world that somebody else owns.
inline std::shared_ptr<World> borrowed(World& world) {
  return std::shared_ptr<World>(&world, [](World*) {});
}

inline std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// One field of all lines of a run's metrics.
inline std::vector<double> metric(const std::string& run_dir, const std::string& field) {
  std::vector<double> values;
  for (const auto& line : read_lines(run_dir + "/metrics.jsonl"))
    values.push_back(line.at(field).get<double>());
  return values;
}

inline constexpr Strategy strategies[] = {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                          Strategy::optim_grads_params};

/// Runs the config in `run_dir` on `ranks` ranks to `steps` steps and gives its losses.
inline std::vector<double> losses_of(Config config, int ranks, const std::string& run_dir) {
  config.train.run_dir = run_dir;
  run_ranks(ranks, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    EXPECT_EQ(run_training(trainer, {}), Ending::finished);
    EXPECT_EQ(trainer.step(), config.train.steps);
  });
  return metric(run_dir, "loss");
}

/// All bytes of a checkpoint's tensors.
inline std::string tensors_of(const std::string& checkpoint) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  EXPECT_FALSE(files.empty()) << checkpoint;
  std::string bytes;
  for (const auto& file : files) bytes += read_file(file.string(), ExitCode::checkpoint);
  return bytes;
}

inline void expect_near(const std::vector<double>& found, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_NEAR(found[i], expected[i], tolerance * std::abs(expected[i])) << "step " << i + 1;
}

}  // namespace phalanx::testing
