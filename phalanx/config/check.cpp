#include "phalanx/config/check.h"

#include <algorithm>
#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/config/keys.h"

namespace phalanx {
namespace {

using Violations = std::vector<Violation>;

void add(Violations& found, const char* key, const std::string& sentence) {
  found.push_back({key, sentence});
}

void check_model(const Config& config, Violations& found) {
  const ModelSpec& spec = config.model.spec;
  std::vector<std::string> missing;
  for (auto [name, size] : {std::pair{"hidden_size", spec.hidden_size},
                            {"num_hidden_layers", spec.num_hidden_layers},
                            {"num_attention_heads", spec.num_attention_heads},
                            {"vocab_size", spec.vocab_size},
                            {"max_position_embeddings", spec.max_position_embeddings}})
    if (size == 0) missing.push_back(name);
  if (!missing.empty()) {
    add(found, "model", text("[model] lacks ", join(missing), "; give them, or model.path"));
    return;
  }
  const Violations model = check(spec);
  found.insert(found.end(), model.begin(), model.end());
}

// For options that would be read and dropped.
void refuse_unused(const char* key, const ConfigValue& value, const ConfigValue& usual,
                   const std::string& with, const char* fix, Violations& found) {
  if (value != usual)
    add(found, key, text(key, " = ", to_toml(value), " has no meaning with ", with, "; ", fix));
}

void check_training_data(const Config& config, Violations& found) {
  const DataConfig& data = config.data;
  const bool tokens = data.kind == DataKind::tokens;
  if (tokens && data.train.empty())
    add(found, "data.train",
        "data.train is missing; give token files (`phalanx data tokenize` makes them), or "
        "data.kind = \"synthetic\"");
  if (config.train.evaluate_every > 0 && tokens && data.validation.empty())
    add(found, "train.evaluate_every",
        text("train.evaluate_every = ", config.train.evaluate_every,
             " without data.validation; give token files for it, or 0"));
  if (!tokens && data.samples < config.batch.global)
    add(found, "data.samples",
        text("data.samples = ", data.samples, " is less than one batch, batch.global = ",
             config.batch.global, "; give at least as many"));
}

void check_data(const Config& config, ConfigUse use, Violations& found) {
  const DataConfig& data = config.data;
  const ModelSpec& spec = config.model.spec;
  if (use == ConfigUse::training)
    check_training_data(config, found);
  else if (data.kind == DataKind::tokens && data.validation.empty())
    add(found, "data.validation", "data.validation is missing; name token files to evaluate on");
  if (data.kind == DataKind::synthetic)
    for (auto [key, files] :
         {std::pair{"data.train", &data.train}, {"data.validation", &data.validation}})
      if (use == ConfigUse::training || files == &data.validation)
        refuse_unused(key, *files, std::vector<std::string>(), "data.kind = \"synthetic\"",
                      "leave it out, or use \"tokens\"", found);
  if (spec.max_position_embeddings > 0 && data.sequence_length > spec.max_position_embeddings)
    add(found, "data.sequence_length",
        text("data.sequence_length = ", data.sequence_length,
             " is beyond model.max_position_embeddings = ", spec.max_position_embeddings,
             "; shorten the sequences or enlarge the model's"));
  if (data.kind == DataKind::tokens && data.tokenizer == "byte" && spec.vocab_size > 0 &&
      spec.vocab_size < 256)
    add(found, "model.vocab_size",
        text("model.vocab_size = ", spec.vocab_size,
             " is less than the 256 ids of data.tokenizer = \"byte\"; give at least 256"));
}

// `ranks`: data-parallel ones. Where no world of this size has so many, the layout's rules say it.
void check_batch(const Config& config, int64_t ranks, int world_size, Violations& found) {
  if (ranks < 1 || ranks > world_size) return;
  const int64_t global = config.batch.global;
  const int64_t micro = config.batch.micro;
  const int64_t unit = ranks * std::max<int64_t>(micro, 1);
  if (global % unit == 0) return;
  const std::string divisor =
      micro == 0 ? text(ranks, " (data-parallel ranks)")
                 : text(micro, " x ", ranks, " (batch.micro x data-parallel ranks) = ", unit);
  const int64_t below = global / unit * unit;
  add(found, "batch.global",
      text("batch.global = ", global, " is no multiple of ", divisor, "; give ",
           below > 0 ? text(below, " or ") : "", below + unit));
}

// Options of one kind that were set beside another.
void check_unused(const Config& config, Violations& found) {
  const Config initial;
  const auto unused = [&](const char* key, const ConfigValue& value, const ConfigValue& usual,
                          const std::string& with,
                          const char* fix) { refuse_unused(key, value, usual, with, fix, found); };
  const OptimizerConfig &optimizer = config.optimizer, &usual = initial.optimizer;
  const std::string kind = text("optimizer.kind = \"", name(optimizer.kind), "\"");
  if (optimizer.kind == OptimizerKind::adamw) {
    unused("optimizer.momentum", optimizer.momentum, usual.momentum, kind,
           "set beta1 instead, or use \"sgd\"");
  } else {
    const char* fix = "leave it out, or use \"adamw\"";
    unused("optimizer.beta1", optimizer.beta1, usual.beta1, kind,
           "set momentum instead, or use \"adamw\"");
    unused("optimizer.beta2", optimizer.beta2, usual.beta2, kind, fix);
    unused("optimizer.epsilon", optimizer.epsilon, usual.epsilon, kind, fix);
  }
  if (config.parallel.strategy != Strategy::optim_grads_params) {
    const std::string strategy = text("parallel.strategy = \"", name(config.parallel.strategy),
                                      "\", which keeps parameters whole");
    const char* fix = "leave it out, or use \"optim_grads_params\"";
    unused("parallel.prefetch", int64_t{config.parallel.prefetch},
           int64_t{initial.parallel.prefetch}, strategy, fix);
    unused("parallel.reshard_after_forward", config.parallel.reshard_after_forward, true, strategy,
           fix);
  }
  if (!config.checkpoint.saves()) {
    const std::string none = "nothing to save";
    const char* fix = "leave it out, or set checkpoint.every";
    unused("checkpoint.async", config.checkpoint.async, false, none, fix);
    unused("checkpoint.verify_after_save", config.checkpoint.verify_after_save, false, none, fix);
  }
  if (config.lr.schedule != LrScheduleKind::constant) return;
  const std::string schedule = "lr.schedule = \"constant\"";
  const char* fix = "leave it out, or use \"cosine\"";
  unused("lr.minimum", config.lr.minimum, initial.lr.minimum, schedule, fix);
  unused("lr.decay_steps", config.lr.decay_steps, int64_t{0}, schedule, fix);
}

void check_update(const Config& config, Violations& found) {
  const LrConfig& lr = config.lr;
  const int64_t decay = lr.decay_steps == 0 ? config.train.steps : lr.decay_steps;
  if (lr.minimum > lr.peak)
    add(found, "lr.minimum",
        text("lr.minimum = ", to_toml(lr.minimum), " is above lr.peak = ", to_toml(lr.peak),
             "; give at most the peak"));
  if (lr.warmup_steps > decay)
    add(found, "lr.warmup_steps",
        text("lr.warmup_steps = ", lr.warmup_steps, " is beyond ",
             lr.decay_steps == 0 ? "train.steps = " : "lr.decay_steps = ", decay,
             "; warm up for fewer steps"));
  check_unused(config, found);
}

// A folder or s3://bucket/prefix.
void check_place(const char* key, const std::string& place, Violations& found) {
  constexpr std::string_view scheme = "s3://";
  if (place.find("://") == std::string::npos) return;
  const bool s3 = place.starts_with(scheme);
  if (s3 && place.size() > scheme.size() && place[scheme.size()] != '/') return;
  add(found, key,
      text(key, " = \"", place, "\" ",
           s3 ? "names no bucket; write s3://bucket/prefix"
              : "is of a kind that cannot be opened; give a folder or s3://bucket/prefix"));
}

// The same text for all spellings of a path; links are not followed.
std::filesystem::path spelled_out(const std::string& folder) {
  std::error_code error;  // no working directory: as it stands
  const auto path = std::filesystem::absolute(folder, error);
  const auto normal = (error ? std::filesystem::path(folder) : path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

void check_folders(const Config& config, Violations& found) {
  check_place("checkpoint.folder", config.checkpoint.folder, found);
  check_place("train.resume", config.train.resume, found);
  check_place("train.init_from", config.train.init_from, found);
  if (config.train.run_dir.find("://") != std::string::npos)
    add(found, "train.run_dir",
        text("train.run_dir = \"", config.train.run_dir,
             "\" is no folder of this host; give a folder, and the other as checkpoint.folder"));
  const CheckpointConfig& checkpoint = config.checkpoint;
  if (checkpoint.local.find("://") != std::string::npos)
    add(found, "checkpoint.local",
        text("checkpoint.local = \"", checkpoint.local,
             "\" is no folder of this host; give it as checkpoint.folder"));
  if (!checkpoint.local.empty() &&
      spelled_out(checkpoint.local) == spelled_out(checkpoint_folder(config)))
    add(found, "checkpoint.local",
        text("checkpoint.local = \"", checkpoint.local,
             "\" is where checkpoints lie anyway; give another folder or leave it out"));
  for (auto [key, value] :
       {std::pair{"train.run_dir", &config.train.run_dir}, {"train.resume", &config.train.resume}})
    if (value->empty())
      add(found, key, text(key, " = \"\" is empty; leave it out or name a folder"));
}

// Of a config that a program made; one that was read from text has been compared already.
void check_values(const Config& config, Violations& found) {
  for (const Key& key : keys()) {
    ConfigValue value = key.get(config);
    const bool told = std::any_of(found.begin(), found.end(), [&](const Violation& violation) {
      return violation.key == key.full_name();
    });
    if (told || value == key.initial) continue;
    if (const std::string wrong = convert(key, value); !wrong.empty())
      add(found, key.full_name().c_str(), wrong);
  }
}

// dp_shard = 0 becomes what the other degrees leave; 1 if they do not divide the world, which
// check() of the layout tells.
Layout fill(Layout layout, int world_size) {
  Degrees& degree = layout.degree;
  if (degree.dp_shard != 0) return layout;
  degree.dp_shard = 1;
  const double others = double(degree.pp) * degree.dp_replicate * degree.cp * degree.tp;
  if (others >= 1 && others <= world_size && world_size % int(others) == 0)
    degree.dp_shard = world_size / int(others);
  return layout;
}

}  // namespace

std::vector<Violation> check(const Config& config, int world_size, ConfigUse use) {
  Violations found;
  check_model(config, found);
  check_data(config, use, found);
  const Layout layout = fill(config.parallel, world_size);
  const Violations broken = check(config.model.spec, layout, world_size);
  found.insert(found.end(), broken.begin(), broken.end());
  if (use == ConfigUse::training) {
    check_batch(config, int64_t{layout.degree.dp_replicate} * layout.degree.dp_shard, world_size,
                found);
    check_update(config, found);
  }
  check_folders(config, found);
  check_values(config, found);
  return found;
}

Config resolve(Config config, int world_size, ConfigUse use) {
  std::vector<std::string> sentences;
  for (const Violation& violation : check(config, world_size, use))
    sentences.push_back(violation.sentence);
  require(sentences.empty(), ExitCode::usage, join(sentences, "\n"));
  config.parallel = fill(config.parallel, world_size);
  const Degrees& degree = config.parallel.degree;
  // No remainder, but for an evaluation.
  const int64_t ranks = int64_t{degree.dp_replicate} * degree.dp_shard;
  if (config.batch.micro == 0) config.batch.micro = (config.batch.global + ranks - 1) / ranks;
  if (config.lr.decay_steps == 0 && config.lr.schedule == LrScheduleKind::cosine)
    config.lr.decay_steps = config.train.steps;
  return config;
}

int64_t accumulation(const Config& config) {
  const Degrees& degree = config.parallel.degree;
  return config.batch.global / (config.batch.micro * degree.dp_replicate * degree.dp_shard);
}

}  // namespace phalanx
