#include "phalanx/train/trainer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>

#include <cmath>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/weights.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/comm/signature.h"
#include "phalanx/config/check.h"
#include "phalanx/config/write.h"
#include "phalanx/train/same_config.h"

namespace phalanx {
namespace {

// What the rows of the ledger grew by.
std::map<std::string, int64_t> difference(const Ledger::Rows& now, const Ledger::Rows& before) {
  std::map<std::string, int64_t> grown;
  for (const auto& [row, bytes] : now) {
    const auto old = before.find(row);
    const int64_t more = bytes - (old == before.end() ? 0 : old->second);
    if (more > 0) grown[row] = more;
  }
  return grown;
}

// Where a run stands in its data is a number of samples: it means the same samples only as long as
// these are the same.
std::map<std::string, Value> description_of(const DataConfig& config, const DataSet& data) {
  std::string hashes;
  for (const DataFile& file : data.files()) hashes += text(file.hash, " ");
  return {{"data.seed", config.seed},
          {"data.sequence_length", data.sequence_length()},
          {"data.contents",
           text(data.describe(), hashes.empty() ? "" : text(", hash ", hash_name(hashes)))}};
}

void warn_of_other_data(const std::string& path, const std::map<std::string, Value>& saved,
                        const std::map<std::string, Value>& now) {
  const auto shown = [](const Value& value) {
    return std::visit([](const auto& held) { return text(held); }, value);
  };
  std::vector<std::string> differences;
  for (const auto& [key, value] : now) {
    const auto before = saved.find(key);
    if (before != saved.end() && before->second != value)
      differences.push_back(text(key, " was ", shown(before->second), " and is ", shown(value)));
  }
  if (!differences.empty())
    log_warning(text("the data is not that of ", path, ": ", join(differences, "; "),
                     "; samples that it has seen may come again, and others not at all"));
}

}  // namespace

Trainer::Trainer(const Config& config, std::shared_ptr<World> world, std::unique_ptr<Model> model)
    : config_(resolve(config, world->info().size)),
      world_(world),
      mesh_(world, config_.parallel.degree),
      everyone_(group_of_all_ranks(*world)),
      device_(cpu_device()) {
  require_same_config(*everyone_, config_);
  Communicator& group = data_parallel_group(mesh_);
  batches_ = std::make_unique<Batches>(open_training_data(config_),
                                       BatchSplit{.global = config_.batch.global,
                                                  .micro = config_.batch.micro,
                                                  .ranks = group.size(),
                                                  .rank = group.rank()},
                                       config_.data.seed);
  require_same_data(*everyone_, "data.train", &batches_->data());
  validation_ = open_validation_data(config_);
  require_same_data(*everyone_, "data.validation", validation_.get());
  if (!model) model = make_model(config_.model.spec, scalar_type(config_.parallel.compute));
  model_ = std::make_unique<ParallelModel>(
      std::move(model), config_.parallel,
      ParallelOptions{.seed = static_cast<uint64_t>(config_.train.seed),
                      .recompute = config_.recompute.mode == RecomputeMode::full},
      mesh_, *device_);
  update_ = std::make_unique<ShardedUpdate>(config_.optimizer, config_.lr, model_->engine());
}

double Trainer::sum_over_ranks(double value, std::string_view purpose) {
  return all_reduce(data_parallel_group(mesh_), value, Op::sum, {"step", purpose});
}

StepMetrics Trainer::train_step() {
  begin();
  const Ledger::Rows before = world_->ledger().snapshot();
  const auto waited = world_->ledger().waited;
  DataParallel& engine = model_->engine();
  const int64_t tokens = batches_->counted_tokens(consumed_);
  const int64_t count = batches_->microbatches();
  double local_loss = 0;
  for (int64_t i = 0; i < count; ++i)
    local_loss += model_->train(batches_->microbatch(consumed_, i), 1.0 / double(tokens), step_,
                                i + 1 == count);
  engine.wait_gradients();
  const double loss = sum_over_ranks(local_loss, "loss") / double(tokens);
  const double norm = engine.gradient_norm();

  StepMetrics metrics;
  metrics.skipped = !std::isfinite(loss) || !std::isfinite(norm);
  if (metrics.skipped && config_.train.on_nan == OnNan::stop) stop_at_nan(local_loss, loss, norm);
  metrics.lr = update_->learning_rate();
  if (!metrics.skipped) update_->step(norm);
  engine.finish_step();
  ++step_;
  consumed_ += config_.batch.global;
  tokens_ += tokens;
  metrics.step = step_;
  metrics.tokens = tokens_;
  metrics.loss = loss;
  metrics.grad_norm = norm;
  metrics.comm_bytes = difference(world_->ledger().snapshot(), before);
  metrics.comm_wait_ms =
      std::chrono::duration<double, std::milli>(world_->ledger().waited - waited).count();
  return metrics;
}

// All ranks are here: the loss and the norm are sums over all of them. The step ends for the engine
// too: a program may go on, from a checkpoint for example.
void Trainer::stop_at_nan(double local_loss, double loss, double norm) {
  model_->engine().finish_step();
  Communicator& group = data_parallel_group(mesh_);
  at::Tensor all = at::zeros({group.size()}, at::kDouble);
  const at::Tensor mine = at::full({1}, local_loss, at::kDouble);
  group.all_gather(all, mine, {"step", "loss"}).wait();
  std::vector<std::string> losses;
  for (int rank = 0; rank < group.size(); ++rank)
    losses.push_back(text("rank ", rank, ": ", all.const_data_ptr<double>()[rank]));
  fail(ExitCode::check_failed, "step ", step_ + 1, ": the loss is ", loss,
       " and the gradient norm ", norm, " (sums of losses, ", join(losses), "); lower lr.peak",
       config_.optimizer.clip_norm > 0 ? " or" : ", set",
       " optimizer.clip_norm, look at the data of this step, or set train.on_nan = \"skip\"");
}

std::optional<Evaluation> Trainer::evaluate() {
  begin();
  if (!validation_) return std::nullopt;
  return phalanx::evaluate(*model_, validation_, config_.batch.micro, data_parallel_group(mesh_));
}

std::vector<StateEntry> Trainer::entries() const {
  std::vector<StateEntry> entries = model_->state();
  for (StateEntry& entry : update_->state()) entries.push_back(std::move(entry));
  return entries;
}

RunState Trainer::run_state() {
  begin();
  Config saved = config_;  // with the model itself: model.path may not be there later
  saved.model.path.clear();
  RunState run{.step = step_,
               .consumed_samples = consumed_,
               .config = to_toml(saved),
               .versions = {{"phalanx", PHALANX_VERSION}},
               .values = {{"tokens", tokens_}, {"updates", update_->steps()}}};
  run.values.merge(description_of(config_.data, data()));
  if (!huggingface_config_.empty()) run.values[huggingface_config_key] = huggingface_config_;
  return run;
}

std::vector<StateEntry> Trainer::state() {
  begin();
  return entries();
}

std::string Trainer::save(const std::string& folder, int keep) {
  return save_checkpoint(*everyone_, folder, run_state(), state(), keep);
}

void Trainer::begin() {
  if (!begun_) initialize();
}

std::string Trainer::initialize() {
  require(
      !load_failed_, ExitCode::usage,
      "the trainer's last load failed, so that its values may be of no step; load a checkpoint, "
      "or make another Trainer");
  const ModelConfig& model = config_.model;
  if (!model.path.empty())
    huggingface_config_ = read_file(model.path + "/config.json", ExitCode::usage);
  const std::string& path = config_.train.init_from.empty() ? model.path : config_.train.init_from;
  if (path.empty() || (path == model.path && !has_weights(*everyone_, path))) {
    begun_ = true;
    return text("initial values of seed ", config_.train.seed,
                path.empty() ? "" : text(" (", path, " holds a config.json and no weights)"));
  }
  model_->engine().wait_gradients();  // peers no longer read what is overwritten
  const LoadedWeights loaded =
      load_weights(*everyone_, path, model.spec, model_->state(), load_options(config_));
  model_->engine().finish_step();
  if (huggingface_config_.empty()) huggingface_config_ = loaded.huggingface_config;
  begun_ = true;
  return loaded.describe();
}

std::string Trainer::load(const std::string& given, bool verified) {
  model_->engine().wait_gradients();  // peers no longer read what is overwritten
  if (config_.checkpoint.allow_missing.empty()) refuse_weights_only(*everyone_, given, entries());
  const std::string path = find_checkpoint(*everyone_, given);
  LoadOptions options = load_options(config_);
  if (verified) options.verify_hashes = false;
  begun_ = false, load_failed_ = true;
  const RunState run = load_checkpoint(*everyone_, path, entries(), options);
  const auto integer = [&](const char* name) {
    const auto value = run.values.find(name);
    require(value != run.values.end() && std::holds_alternative<int64_t>(value->second),
            ExitCode::checkpoint, path, ": its manifest has no integer '", name,
            "'; it was not saved by `phalanx train`");
    return std::get<int64_t>(value->second);
  };
  const auto json = run.values.find(huggingface_config_key);
  const auto* config_json =
      json == run.values.end() ? nullptr : std::get_if<std::string>(&json->second);
  huggingface_config_ = config_json ? *config_json : "";
  step_ = run.step;
  consumed_ = run.consumed_samples;
  tokens_ = integer("tokens");
  update_->set_steps(integer("updates"));
  model_->engine().finish_step();
  begun_ = true, load_failed_ = false;
  if (everyone_->rank() == 0)
    warn_of_other_data(path, run.values, description_of(config_.data, data()));
  return path;
}

}  // namespace phalanx
