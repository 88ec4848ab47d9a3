#include "phalanx/shard/module.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <map>

#include "phalanx/base/error.h"
#include "phalanx/base/text.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

// The module's own tensor becomes the parameter: its handles stay valid, its memory is the unit's.
Parameter adopt(const std::string& name, const at::Tensor& tensor) {
  require(tensor.is_contiguous(), ExitCode::usage, "parameter ", name,
          ": not contiguous; make it contiguous before it is sharded");
  auto parameter = std::make_shared<ParameterState>();
  parameter->spec = whole_parameter(name, name, tensor.sizes().vec(), Kind::weight, {});
  parameter->spec.trainable = tensor.requires_grad();
  parameter->tensor = tensor;
  return parameter;
}

using Names = std::map<const at::TensorImpl*, std::string>;

// The names of all parameters; a tied one goes by its first.
Names names_of(const torch::nn::Module& module) {
  Names names;
  for (const auto& item : module.named_parameters())
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  return names;
}

using Modules = std::vector<torch::nn::Module*>;

bool holds(const Modules& modules, const torch::nn::Module& module) {
  return std::find(modules.begin(), modules.end(), &module) != modules.end();
}

// Adds to `unit` what `part` and its submodules hold, other blocks excepted. `owners`: the unit of
// each parameter so far.
void claim(UnitParameters& unit, const torch::nn::Module& part, const Modules& blocks,
           const Names& names, Names& owners) {
  for (const auto& item : part.named_parameters(false)) {
    const at::TensorImpl* tensor = item.value().unsafeGetTensorImpl();
    const auto name = names.find(tensor);
    require(name != names.end(), ExitCode::usage, unit.name, " has the parameter ", item.key(),
            ", which the module does not; blocks must be submodules of it");
    const auto [owner, fresh] = owners.emplace(tensor, unit.name);
    require(owner->second == unit.name, ExitCode::usage, "parameter ", name->second, " is in ",
            owner->second, " and in ", unit.name,
            "; tied parameters must share a block, or be in none");
    if (fresh) unit.parameters.push_back(adopt(name->second, item.value()));
  }
  for (const auto& child : part.children())
    if (!holds(blocks, *child)) claim(unit, *child, blocks, names, owners);
}

// The root and the blocks. In each, parameters that are trained come first, so that an optimizer
// can have them without the frozen ones, whose values its decay would change.
std::vector<UnitParameters> units_of(const torch::nn::Module& module, const Modules& blocks) {
  const Names names = names_of(module);
  Names owners;
  std::vector<UnitParameters> units = {{"root", {}}};
  for (size_t i = 0; i < blocks.size(); ++i) {
    require(std::find(blocks.begin(), blocks.begin() + i, blocks[i]) == blocks.begin() + i,
            ExitCode::usage, "block ", i, " is listed twice; list each block once");
    claim(units.emplace_back(UnitParameters{text("block ", i), {}}), *blocks[i], blocks, names,
          owners);
  }
  if (!holds(blocks, module)) claim(units[0], module, blocks, names, owners);
  for (UnitParameters& unit : units)
    std::stable_partition(unit.parameters.begin(), unit.parameters.end(),
                          [](const Parameter& parameter) { return parameter->spec.trainable; });
  return units;
}

// Of a 1-D tensor as long as the unit's part on this rank, what belongs to trained parameters.
at::Tensor trained_part(const Unit& unit, const at::Tensor& part) {
  int64_t count = 0;
  for (const ParameterShard& shard : unit.shards())
    if (shard.parameter->spec.trainable && !shard.range.empty())
      count =
          shard.values.storage_offset() - unit.value_shard().storage_offset() + shard.range.count();
  return part.narrow(0, 0, count);
}

Initializer from_rank_zero(Communicator& group) {
  return [&group](const Parameter& parameter, int64_t begin, int64_t end, const at::Tensor& out) {
    at::Tensor values = parameter->tensor.detach().flatten().clone();
    group.broadcast(values, 0, {parameter->spec.name, "initial values"}).wait();
    at::Tensor(out).copy_(values.slice(0, begin, end));
    group.barrier({parameter->spec.name, "initial values"});
  };
}

void take_buffers_of_rank_zero(const torch::nn::Module& module, Communicator& group) {
  if (group.size() == 1) return;
  GradMode no_grad(false);
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined()) continue;
    const at::Tensor values = item.value().clone(at::MemoryFormat::Contiguous);
    const Handle handle = group.broadcast(values, 0, {item.key(), "initial values"});
    handle.wait();
    if (!at::equal(item.value(), values)) item.value().copy_(values);  // not into expanded ones
    handle.wait_inputs();
  }
}

}  // namespace

ShardedModule::ShardedModule(torch::nn::Module& module, std::vector<torch::nn::Module*> blocks,
                             Layout layout, Communicator& group, Device& device)
    : module_(module), blocks_(std::move(blocks)) {
  std::vector<UnitParameters> units = units_of(module, blocks_);
  const at::Tensor* first = nullptr;
  for (const auto& unit : units)
    for (const auto& parameter : unit.parameters) {
      if (!first) first = &parameter->tensor;
      require(parameter->tensor.scalar_type() == first->scalar_type(), ExitCode::usage,
              "parameter ", parameter->spec.name, ": dtype ", parameter->tensor.scalar_type(),
              " beside ", first->scalar_type(), "; a sharded module needs one dtype");
    }
  require(first != nullptr, ExitCode::usage, "the module has no parameters; nothing to shard");
  layout.compute = layout.master = layout.reduce_dtype = dtype_of(*first);
  engine_ = std::make_unique<DataParallel>(layout, group, device, std::move(units),
                                           from_rank_zero(group));
  take_buffers_of_rank_zero(module, group);
  for (size_t i = 0; i < engine_->unit_count(); ++i) {
    const Unit& unit = engine_->unit(i);
    leaves_.push_back(trained_part(unit, unit.value_shard()).detach());
    leaves_.back().set_requires_grad(true);
  }
}

void ShardedModule::begin(bool last) {
  last_ = last;
  engine_->begin_microbatch(last);
}

at::Tensor ShardedModule::run(const torch::nn::Module& block, const Tensors& inputs,
                              const std::function<at::Tensor(const Tensors&)>& function) {
  const auto found = std::find(blocks_.begin(), blocks_.end(), &block);
  require(found != blocks_.end(), ExitCode::usage, "module ", block.name(),
          ": not one of the blocks that were sharded; pass it to the constructor");
  const size_t unit = static_cast<size_t>(found - blocks_.begin()) + 1;
  return engine_->run(unit, inputs,
                      [&](const Tensors& entering) -> Tensors { return {function(entering)}; })[0];
}

void ShardedModule::backward(const at::Tensor& loss, std::optional<double> weight) {
  require(loss.numel() == 1, ExitCode::usage, "backward from a tensor of ", loss.numel(),
          " elements; a loss is a scalar");
  run_backward({loss}, {at::full_like(loss, weight.value_or(1.0 / engine_->group().size()))});
  end();
  if (!last_) return;
  engine_->wait_gradients();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const Unit& unit = engine_->unit(i);
    leaves_[i].mutable_grad() = trained_part(unit, unit.gradient_shard());
  }
}

void ShardedModule::end() { engine_->end_microbatch(); }

double ShardedModule::clip_gradients(double largest) {
  const double norm = engine_->gradient_norm();
  if (norm > largest)
    for (auto& leaf : leaves_) leaf.mutable_grad().mul_(largest / norm);
  return norm;
}

void ShardedModule::finish_step() { engine_->finish_step(); }

}  // namespace phalanx
