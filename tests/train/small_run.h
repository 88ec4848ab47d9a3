#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "phalanx/comm/world.h"
#include "phalanx/config/config.h"

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

}  // namespace phalanx::testing
