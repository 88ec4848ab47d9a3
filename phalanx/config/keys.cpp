#include "phalanx/config/keys.h"

#include <algorithm>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

constexpr Range any;
constexpr Range positive{.low = 0, .open_low = true};
constexpr Range not_negative{.low = 0};
constexpr Range fraction{.low = 0, .high = 1, .open_high = true};
constexpr Range between(double low, double high) { return {.low = low, .high = high}; }
constexpr Range degree = between(1, 1 << 20);
constexpr Range steps = between(0, 1e9);

// Every name of an enumeration, in order.
template <class Enum>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (uint8_t i = 0; std::string(name(static_cast<Enum>(i))) != "?"; ++i)
    names.push_back(name(static_cast<Enum>(i)));
  return names;
}

template <class Field>
ConfigValue read(const Field& field) {
  if constexpr (std::is_enum_v<Field>)
    return std::string(name(field));
  else if constexpr (std::is_same_v<Field, int>)
    return int64_t{field};
  else
    return field;
}

template <class Field>
void write(Field& field, const ConfigValue& value) {
  if constexpr (std::is_enum_v<Field>) {
    const auto& wanted = std::get<std::string>(value);
    const auto names = names_of<Field>();
    const auto found = std::find(names.begin(), names.end(), wanted);
    require(found != names.end(), ExitCode::usage, "'", wanted, "' is none of ", join(names));
    field = static_cast<Field>(found - names.begin());
  } else if constexpr (std::is_same_v<Field, int>) {
    field = static_cast<int>(std::get<int64_t>(value));
  } else {
    field = std::get<Field>(value);
  }
}

class Table {
 public:
  void section(const char* name, const char* doc) { sections.push_back({name, doc}); }

  // A function that adds keys to the section, whose fields lie in the struct that `access` gives.
  template <class Access>
  auto part(Access access) {
    return
        [this, access](const char* name, auto field, const char* doc, Range range = any) -> Key& {
          return this->add(
              name, [=](auto& config) -> auto& { return access(config).*field; }, doc, range);
        };
  }

  std::vector<Key> keys;
  std::vector<Section> sections;

 private:
  // `access` gives the field of a config.
  template <class Access>
  Key& add(const char* name, Access access, const char* doc, Range range) {
    using Field = std::remove_cvref_t<decltype(access(std::declval<const Config&>()))>;
    Key key;
    key.section = sections.back().name;
    key.name = name;
    key.doc = doc;
    key.since = "0.1";
    key.range = range;
    if constexpr (std::is_enum_v<Field>) key.allowed = names_of<Field>();
    key.get = [access](const Config& config) { return read(access(config)); };
    key.set = [access](Config& config, const ConfigValue& value) { write(access(config), value); };
    key.initial = key.get(Config());
    keys.push_back(std::move(key));
    return keys.back();
  }
};

void add_model(Table& table) {
  table.section("model", "What is trained: a Hugging Face folder, or the sizes by its names.");
  const auto model = table.part([](auto& config) -> auto& { return config.model; });
  const auto spec = table.part([](auto& config) -> auto& { return config.model.spec; });
  model("path", &ModelConfig::path,
        "folder with config.json and weights to start from; then no sizes are given");
  spec("kind", &ModelSpec::kind, "architecture").allowed = {"gpt2"};
  spec("hidden_size", &ModelSpec::hidden_size, "width of the residual stream",
       between(1, most_width));
  spec("num_hidden_layers", &ModelSpec::num_hidden_layers, "transformer layers",
       between(1, most_layers));
  spec("num_attention_heads", &ModelSpec::num_attention_heads, "heads; they divide hidden_size",
       between(1, most_width));
  spec("num_key_value_heads", &ModelSpec::num_key_value_heads,
       "heads of keys and values; 0: num_attention_heads, which gpt2 needs",
       between(0, most_width));
  spec("intermediate_size", &ModelSpec::intermediate_size,
       "width inside the MLP; 0: 4 x hidden_size", between(0, most_inner_width));
  spec("vocab_size", &ModelSpec::vocab_size, "token ids that the model knows",
       between(1, most_tokens));
  spec("max_position_embeddings", &ModelSpec::max_position_embeddings, "longest sequence",
       between(1, most_positions));
  spec("layer_norm_epsilon", &ModelSpec::layer_norm_epsilon, "added to the variance in layer norms",
       positive);
  spec("attn_pdrop", &ModelSpec::attn_pdrop, "dropout on attention probabilities", fraction);
  spec("resid_pdrop", &ModelSpec::resid_pdrop,
       "dropout on what a layer adds to the residual stream", fraction);
  spec("embd_pdrop", &ModelSpec::embd_pdrop, "dropout on the embeddings", fraction);
  spec("tie_word_embeddings", &ModelSpec::tie_word_embeddings,
       "the output head shares the weights of the token embedding");
  spec("initializer_range", &ModelSpec::initializer_range, "standard deviation of initial weights",
       positive);
}

void add_data(Table& table) {
  table.section("data", "What it is trained on. Paths are relative to the working directory.");
  const auto data = table.part([](auto& config) -> auto& { return config.data; });
  data("kind", &DataConfig::kind, "token files, or made-up sequences for trials");
  data("train", &DataConfig::train, "token files to train on (`phalanx data tokenize`)");
  data("validation", &DataConfig::validation, "token files for evaluation");
  data("sequence_length", &DataConfig::sequence_length, "tokens per sequence",
       between(1, most_positions));
  data("tokenizer", &DataConfig::tokenizer, "turns text into ids and back").allowed = {"byte"};
  data("samples", &DataConfig::samples, "sequences in a synthetic data set", between(1, 1e9));
  data("seed", &DataConfig::seed, "of the order of samples, and of synthetic ones", not_negative);
}

void add_batch(Table& table) {
  table.section("batch", "Sequences. Accumulation is global / (micro x dp_replicate x dp_shard).");
  const auto batch = table.part([](auto& config) -> auto& { return config.batch; });
  batch("global", &BatchConfig::global, "sequences per optimizer step, over all ranks",
        between(1, 1 << 30));
  batch("micro", &BatchConfig::micro,
        "sequences per forward of one rank; 0: all of its share at once", between(0, 1 << 30));
}

void add_parallel(Table& table) {
  table.section("parallel", "How the run is spread over the ranks.");
  const auto degrees = table.part([](auto& config) -> auto& { return config.parallel.degree; });
  const auto layout = table.part([](auto& config) -> auto& { return config.parallel; });
  degrees("dp_replicate", &Degrees::dp_replicate,
          "data-parallel groups that hold the same shards; 1 in this version", degree);
  degrees("dp_shard", &Degrees::dp_shard,
          "data-parallel ranks that share the state; 0: the ranks that the other degrees leave",
          between(0, 1 << 20));
  degrees("cp", &Degrees::cp, "context-parallel ranks; 1 in this version", degree);
  degrees("tp", &Degrees::tp, "tensor-parallel ranks; 1 in this version", degree);
  degrees("pp", &Degrees::pp, "pipeline stages; 1 in this version", degree);
  degrees("ep", &Degrees::ep, "expert-parallel ranks; 1 in this version", degree);
  degrees("etp", &Degrees::etp, "tensor-parallel ranks of an expert; 1 in this version", degree);
  layout("strategy", &Layout::strategy,
         "state that is sharded over dp_shard: nothing (DDP), optimizer state (ZeRO-1), and "
         "gradients (ZeRO-2), and parameters (ZeRO-3, FSDP)");
  layout("reduce", &Layout::reduce,
         "when sharded gradients are summed over the ranks; those of `none` and `optim` are once "
         "per step");
  layout("reshard_after_forward", &Layout::reshard_after_forward,
         "give gathered parameters back between forward and backward");
  layout(
      "cut", &Layout::cut,
      "how a unit is cut: equal parts of its flat buffer, or every parameter along dim 0 (not in "
      "this version)");
  layout("prefetch", &Layout::prefetch, "units gathered ahead of the one that computes",
         between(0, 1 << 10));
}

void add_precision(Table& table) {
  const std::vector<std::string> floats = {"float64", "float32", "bfloat16", "float16"};
  table.section("precision",
                "Element types; in this version float32 or float64, the same for all three.");
  const auto layout = table.part([](auto& config) -> auto& { return config.parallel; });
  layout("compute", &Layout::compute, "of parameters and activations in forward").allowed = floats;
  layout("master", &Layout::master,
         "of the parameters that the optimizer updates; float64 if left out and compute is")
      .allowed = floats;
  layout("reduce", &Layout::reduce_dtype,
         "in which gradients are summed; float64 if left out and compute is")
      .allowed = floats;
}

void add_optimizer(Table& table) {
  table.section("optimizer", "The update.");
  const auto optimizer = table.part([](auto& config) -> auto& { return config.optimizer; });
  optimizer("kind", &OptimizerConfig::kind, "AdamW, or gradient descent with momentum");
  optimizer("beta1", &OptimizerConfig::beta1, "adamw: decay of the mean gradient", fraction);
  optimizer("beta2", &OptimizerConfig::beta2, "adamw: decay of the mean squared gradient",
            fraction);
  optimizer("epsilon", &OptimizerConfig::epsilon, "adamw: added to the divisor", positive);
  optimizer("momentum", &OptimizerConfig::momentum, "sgd: decay of the velocity", fraction);
  optimizer("weight_decay", &OptimizerConfig::weight_decay,
            "per unit of learning rate, on matrices and embeddings", not_negative);
  optimizer("clip_norm", &OptimizerConfig::clip_norm,
            "largest norm of all gradients together; 0: no clipping", not_negative);
}

void add_lr(Table& table) {
  table.section("lr", "The learning rate: linear warm-up, then the schedule. Steps are updates.");
  const auto lr = table.part([](auto& config) -> auto& { return config.lr; });
  lr("schedule", &LrConfig::schedule, "after the warm-up");
  lr("peak", &LrConfig::peak, "reached at the end of the warm-up", positive);
  lr("minimum", &LrConfig::minimum, "reached at decay_steps by cosine", not_negative);
  lr("warmup_steps", &LrConfig::warmup_steps, "from 0 to peak", steps);
  lr("decay_steps", &LrConfig::decay_steps, "step at which minimum is reached; 0: train.steps",
     steps);
}

void add_train(Table& table) {
  table.section("train", "The run.");
  const auto train = table.part([](auto& config) -> auto& { return config.train; });
  train("steps", &TrainConfig::steps, "optimizer updates in all", between(1, 1e9));
  train("seed", &TrainConfig::seed, "of initial values and dropout", not_negative);
  train("run_dir", &TrainConfig::run_dir, "folder for config, metrics and checkpoints");
  train("resume", &TrainConfig::resume,
        "`auto` (the newest complete checkpoint of run_dir, if any), `never`, or the folder of "
        "a checkpoint");
  train("init_from", &TrainConfig::init_from,
        "weights that a new run starts from: a checkpoint, a run's folder, a Hugging Face folder, "
        "a file; empty: those of model.path, or initial values");
  train("log_every", &TrainConfig::log_every, "steps between lines of metrics", between(1, 1e9));
  train("evaluate_every", &TrainConfig::evaluate_every,
        "steps between evaluations on the validation data; 0: never", steps);
  train("on_nan", &TrainConfig::on_nan,
        "when loss or gradients are not finite: stop the run, or skip the update");
  train("threads", &TrainConfig::threads, "per rank; 0: cores over the ranks of this host",
        between(0, 1 << 16));
  train("transport", &TrainConfig::transport, "how ranks exchange data").allowed = {
      "automatic", "shared_memory", "gloo"};
  train("deadline_s", &TrainConfig::deadline_s,
        "seconds that a rank waits for the others in a collective",
        Range{.low = 0, .high = 1e6, .open_low = true});
  train("join_deadline_s", &TrainConfig::join_deadline_s,
        "seconds that a rank waits for all others to join at the start",
        Range{.low = 0, .high = 1e6, .open_low = true});
  train("debug", &TrainConfig::debug, "compare a fingerprint of every collective between ranks");
}

void add_rest(Table& table) {
  table.section("checkpoint", "What is saved, and how it is loaded.");
  const auto checkpoint = table.part([](auto& config) -> auto& { return config.checkpoint; });
  checkpoint("every", &CheckpointConfig::every,
             "steps between checkpoints, and one after the last step; 0: none by steps", steps);
  checkpoint("every_minutes", &CheckpointConfig::every_minutes,
             "minutes between checkpoints, by the clock of rank 0; 0: none by time", not_negative);
  checkpoint("keep", &CheckpointConfig::keep, "newest checkpoints that are kept; 0: all",
             between(0, 1 << 30));
  checkpoint("keep_every", &CheckpointConfig::keep_every,
             "steps between checkpoints that are never deleted; 0: none", steps);
  checkpoint("folder", &CheckpointConfig::folder,
             "where checkpoints lie: a folder that all ranks see, or `s3://bucket/prefix`; empty: "
             "`checkpoints` in train.run_dir");
  checkpoint("local", &CheckpointConfig::local,
             "a folder of each host's own that is saved to first and copied to `folder` in the "
             "background; empty: none");
  checkpoint("async", &CheckpointConfig::async,
             "training waits for a copy of the state in memory only, which takes as much as the "
             "state");
  checkpoint("verify_after_save", &CheckpointConfig::verify_after_save,
             "every rank reads its file back and compares before the checkpoint counts");
  checkpoint("verify_hashes", &CheckpointConfig::verify_hashes,
             "read all of a checkpoint and compare hashes before it is loaded; with resume = "
             "`auto` the newest one without damage is taken");
  checkpoint("allow_missing", &CheckpointConfig::allow_missing,
             "tensors that a checkpoint may lack and that then keep their values: patterns such as "
             "`transformer.h.12.*` on names as `phalanx ckpt inspect` shows them, followed by "
             "`:role` unless it "
             "is a parameter");
  checkpoint("allow_unexpected", &CheckpointConfig::allow_unexpected,
             "tensors of a checkpoint that may be passed over: patterns");
  table.section("recompute", "Memory for compute.");
  const auto recompute = table.part([](auto& config) -> auto& { return config.recompute; });
  recompute("mode", &RecomputeConfig::mode,
            "keep all activations, or compute each block's again in backward");
}

const Table& table() {
  static const Table made = [] {
    Table table;
    add_model(table);
    add_data(table);
    add_batch(table);
    add_parallel(table);
    add_precision(table);
    add_optimizer(table);
    add_lr(table);
    add_train(table);
    add_rest(table);
    return table;
  }();
  return made;
}

}  // namespace

const std::vector<Key>& keys() { return table().keys; }
const std::vector<Section>& sections() { return table().sections; }

const Key* find_key(std::string_view full_name) {
  for (const Key& key : keys())
    if (key.full_name() == full_name) return &key;
  return nullptr;
}

bool is_planned(std::string_view name) {
  for (const char* planned : {"offload", "wire", "profile", "parallel.cp_method",
                              "parallel.sequence_parallel", "parallel.schedule"})
    if (name == planned) return true;
  return false;
}

}  // namespace phalanx
