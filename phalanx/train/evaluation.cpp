#include "phalanx/train/evaluation.h"

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/weights.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/config/check.h"
#include "phalanx/train/same_config.h"

namespace phalanx {
namespace {

// Validation samples of synthetic data come from another seed than those of training.
constexpr uint64_t validation_seed = 0x9e3779b97f4a7c15;

}  // namespace

std::shared_ptr<const DataSet> open_training_data(const Config& config) {
  const DataConfig& data = config.data;
  if (data.kind == DataKind::synthetic)
    return synthetic_data(data.samples, data.sequence_length, config.model.spec.vocab_size,
                          data.seed);
  return open_token_files(data.train, data.sequence_length, config.model.spec.vocab_size);
}

std::shared_ptr<const DataSet> open_validation_data(const Config& config) {
  const DataConfig& data = config.data;
  if (data.kind == DataKind::synthetic)
    return synthetic_data(std::max<int64_t>(1, data.samples / 16), data.sequence_length,
                          config.model.spec.vocab_size, data.seed ^ validation_seed);
  if (data.validation.empty()) return nullptr;
  return open_token_files(data.validation, data.sequence_length, config.model.spec.vocab_size);
}

Evaluation evaluate(ParallelModel& model, const std::shared_ptr<const DataSet>& data, int64_t micro,
                    Communicator& group) {
  const ValidationBatches batches(data, micro, group.size(), group.rank());
  double sum = 0;
  for (int64_t i = 0; i < batches.steps(); ++i) sum += model.evaluate(batches.step(i));
  const double total = all_reduce(group, sum, Op::sum, {"evaluation", "loss"});
  return {.loss = total / double(batches.counted_tokens()),
          .tokens = batches.counted_tokens(),
          .samples = batches.counted_samples()};
}

std::string find_checkpoint(Communicator& everyone, const std::string& path) {
  return agree_with_first(
      everyone, "find", [&] { return resolve_checkpoint(path); }, disk_deadline);
}

LoadOptions load_options(const Config& config) {
  LoadOptions options;
  options.verify_hashes = config.checkpoint.verify_hashes;
  options.allow_missing = config.checkpoint.allow_missing;
  options.allow_unexpected = config.checkpoint.allow_unexpected;
  return options;
}

CheckpointEvaluation evaluate_checkpoint(const Config& config, std::shared_ptr<World> world,
                                         const std::string& path) {
  const Config resolved = resolve(config, world->info().size, ConfigUse::evaluation);
  const auto data = open_validation_data(resolved);
  const auto everyone = group_of_all_ranks(*world);
  require_same_config(*everyone, resolved);
  require_same_data(*everyone, "data.validation", data.get());
  Mesh mesh(world, resolved.parallel.degree);
  const auto device = cpu_device();
  ParallelModel model(make_model(resolved.model.spec, scalar_type(resolved.parallel.compute)),
                      resolved.parallel, {.seed = uint64_t(resolved.train.seed)}, mesh, *device);
  CheckpointEvaluation found;
  const std::string& folder = resolved.checkpoint.folder;
  const std::string& saved_in = folder.empty() ? resolved.train.run_dir : folder;
  const std::string where = path.empty() ? find_checkpoint(*everyone, saved_in) : path;
  const LoadedWeights loaded =
      load_weights(*everyone, where, resolved.model.spec, model.state(), load_options(resolved));
  found.path = loaded.path;
  found.step = loaded.step;
  model.engine().finish_step();
  found.result = evaluate(model, data, resolved.batch.micro, data_parallel_group(mesh));
  return found;
}

}  // namespace phalanx
