#include "phalanx/parallel/parallelize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include "phalanx/base/error.h"
#include "phalanx/device/failure.h"
#include "phalanx/nn/init.h"

namespace phalanx {
namespace {

std::vector<UnitParameters> units_of(Model& model) {
  std::vector<UnitParameters> units = {{"root", model.root_parameters()}};
  for (int i = 0; i < model.block_count(); ++i)
    units.push_back({text("blocks.", i), model.block(i).parameters()});
  return units;
}

}  // namespace

ParallelModel::ParallelModel(std::unique_ptr<Model> model, const Layout& layout,
                             const ParallelOptions& options, Mesh& mesh, Device& device)
    : options_(options), mesh_(mesh), model_(std::move(model)) {
  const uint64_t seed = options.seed;
  engine_ = std::make_unique<DataParallel>(
      layout, data_parallel_group(mesh), device, units_of(*model_),
      [seed](const Parameter& parameter, int64_t begin, int64_t end, const at::Tensor& out) {
        initialize(parameter->spec, seed, begin, end, out);
      });
}

Loss ParallelModel::forward(const Microbatch& batch, double scale, const Context& context) {
  pass_ = "forward";
  unit_ = 0;
  Tensors hidden = model_->embed(batch.tokens, context);
  for (int i = 0; i < model_->block_count(); ++i) {
    Block& block = model_->block(i);
    unit_ = i + 1;
    const auto run = [&block, context](const Tensors& in) { return block.forward(in, context); };
    hidden = engine_->run(i + 1, hidden, [&](const Tensors& in) {
      return options_.recompute && context.training ? recompute(in, run) : run(in);
    });
    if (context.training) hidden = boundary(hidden, [this, i] { unit_ = i + 1; });
  }
  unit_ = 0;
  return model_->loss(hidden, batch.targets, scale, context);
}

double ParallelModel::train(const Microbatch& batch, double scale, int64_t step, bool last) {
  const Context context{.mesh = &mesh_,
                        .step = step,
                        .sequence = {.first_sample = batch.first_row},
                        .seed = options_.seed};
  return with_memory_errors(batch, [&] {
    engine_->begin_microbatch(last);
    const Loss loss = forward(batch, scale, context);
    pass_ = "backward";
    run_backward({loss.scaled}, {at::ones({}, loss.scaled.options())});
    unit_ = 0;
    engine_->end_microbatch();
    return loss.sum;
  });
}

double ParallelModel::evaluate(const Microbatch& batch) {
  GradMode no_grad(false);
  const Context context{.mesh = &mesh_, .seed = options_.seed, .training = false};
  return with_memory_errors(batch, [&] {
    engine_->begin_microbatch(true);
    const Loss loss = forward(batch, 1, context);
    engine_->end_microbatch();
    return loss.sum;
  });
}

double ParallelModel::with_memory_errors(const Microbatch& batch,
                                         const std::function<double()>& run) {
  try {
    return run();
  } catch (...) {
    const std::string reason = out_of_memory_reason();
    if (reason.empty()) throw;
    out_of_memory(reason, batch);
  }
}

void ParallelModel::out_of_memory(const std::string& reason, const Microbatch& batch) const {
  const Unit& unit = engine_->unit(unit_);
  const UnitPlan& plan = unit.plan();
  const bool keeps_activations = at::GradMode::is_enabled() && !options_.recompute;
  fail(ExitCode::environment, "out of memory in the ", pass_, " of unit ", unit.name(), " (",
       plan.padded * size_of(plan.compute), " bytes of parameters gathered, ", batch.tokens.size(0),
       " sequences of ", batch.tokens.size(1), " tokens): ", reason, "; ",
       batch.tokens.size(0) > 1 ? "lower batch.micro, " : "",
       keeps_activations ? "set recompute.mode = \"full\", " : "",
       "shorten data.sequence_length or use more ranks");
}

std::vector<StateEntry> ParallelModel::state() const {
  std::vector<StateEntry> entries;
  for (const ParameterShard& shard : engine_->shards())
    for (StateEntry& entry : shard_entries(shard.parameter->spec, shard.range.begin,
                                           shard.range.end, shard.values, "parameter"))
      entries.push_back(std::move(entry));
  return entries;
}

}  // namespace phalanx
