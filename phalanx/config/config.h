#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/spec/layout.h"
#include "phalanx/spec/model.h"

namespace phalanx {

// A run as plain data: one struct per section of the config file. keys.cpp describes every field
// (docs/config.md); the defaults are those written here.

enum class DataKind : uint8_t { tokens, synthetic };
enum class OptimizerKind : uint8_t { adamw, sgd };
enum class LrScheduleKind : uint8_t { cosine, constant };
enum class OnNan : uint8_t { stop, skip };
enum class RecomputeMode : uint8_t { none, full };

const char* name(DataKind kind);
const char* name(OptimizerKind kind);
const char* name(LrScheduleKind kind);
const char* name(OnNan action);
const char* name(RecomputeMode mode);

struct ModelConfig {
  std::string path;  ///< folder of a Hugging Face model; empty: `spec` comes from the config
  ModelSpec spec;    ///< complete after loading, whichever way it was given
  bool operator==(const ModelConfig&) const = default;
};

struct DataConfig {
  DataKind kind = DataKind::tokens;
  std::vector<std::string> train, validation;  ///< token files
  int64_t sequence_length = 256;
  std::string tokenizer = "byte";
  int64_t samples = 4096;  ///< synthetic only
  int64_t seed = 0;        ///< of the order, and of synthetic samples
  bool operator==(const DataConfig&) const = default;
};

struct BatchConfig {
  int64_t global = 8;  ///< sequences per optimizer step, over all ranks
  int64_t micro = 0;   ///< sequences per forward of a rank; 0 (before resolve): no accumulation
  bool operator==(const BatchConfig&) const = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  ///< adamw
  double momentum = 0;                               ///< sgd
  double weight_decay = 0.1;
  double clip_norm = 1;  ///< largest global gradient norm; 0: no clipping
  bool operator==(const OptimizerConfig&) const = default;
};

struct LrConfig {
  LrScheduleKind schedule = LrScheduleKind::cosine;
  double peak = 3e-4, minimum = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  ///< step at which `minimum` is reached; 0 (before resolve): train.steps
  bool operator==(const LrConfig&) const = default;
};

struct TrainConfig {
  int64_t steps = 100;
  int64_t seed = 0;  ///< of initial values and dropout
  std::string run_dir = "runs/default";
  std::string resume = "auto";  ///< "auto", "never" or a checkpoint's folder
  std::string init_from;        ///< weights of a new run; empty: those of model.path, if any
  int64_t log_every = 10;
  int64_t evaluate_every = 0;  ///< 0: never
  OnNan on_nan = OnNan::stop;
  int64_t threads = 0;                  ///< per rank; 0: cores over local ranks
  std::string transport = "automatic";  ///< or "shared_memory", "gloo"
  double deadline_s = 300;              ///< of a collective
  double join_deadline_s = 120;         ///< of the meeting of all ranks at the start
  bool debug = false;                   ///< compare a fingerprint before every collective
  bool operator==(const TrainConfig&) const = default;
};

/// If any of every, every_minutes and keep_every is set, one is saved after the last step too.
struct CheckpointConfig {
  int64_t every = 100;       ///< steps; 0: not by steps
  double every_minutes = 0;  ///< 0: not by time
  int64_t keep = 2;          ///< newest checkpoints kept; 0: all
  int64_t keep_every = 0;    ///< steps whose checkpoints are never deleted; 0: none
  std::string folder;        ///< empty (before resolve): run_dir/checkpoints
  std::string local;         ///< of this host, copied to `folder` in the background; empty: none
  bool async = false;
  bool verify_after_save = false;
  bool verify_hashes = false;  ///< compare all contents before loading
  std::vector<std::string> allow_missing, allow_unexpected;  ///< patterns (LoadOptions)
  bool saves() const { return every > 0 || every_minutes > 0 || keep_every > 0; }
  bool operator==(const CheckpointConfig&) const = default;
};

struct RecomputeConfig {
  RecomputeMode mode = RecomputeMode::none;
  bool operator==(const RecomputeConfig&) const = default;
};

struct Config {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  Layout parallel;  ///< [parallel] and [precision]; degree.dp_shard = 0 (before resolve): the rest
  OptimizerConfig optimizer;
  LrConfig lr;
  TrainConfig train;
  CheckpointConfig checkpoint;
  RecomputeConfig recompute;
  Config() { parallel.degree.dp_shard = 0; }
  bool operator==(const Config&) const = default;
};

/// [checkpoint] folder, or what it is by default: run_dir/checkpoints.
std::string checkpoint_folder(const Config& config);

}  // namespace phalanx
