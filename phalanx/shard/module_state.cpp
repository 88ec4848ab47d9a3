#include "phalanx/shard/module_state.h"

#include <torch/optim.h>

#include <functional>
#include <set>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

namespace optim = torch::optim;

// A tensor that the optimizer steps: a parameter, or a unit's part with many parameters in it. Or
// one that nobody steps, since what is in it is frozen.
struct Leaf {
  at::Tensor tensor;
  bool trained;
  std::vector<std::string> names;  // of the parameters in it
  std::function<std::vector<StateEntry>(const at::Tensor& like_leaf, const std::string& role)> cut;
};

struct Module {
  std::vector<Leaf> leaves;
  std::vector<StateEntry> buffers;
};

// What an optimizer keeps for a leaf.
struct Kept {
  std::vector<std::pair<const char*, at::Tensor>> tensors;
  int64_t* step = nullptr;
};

// The step of a leaf, as the checkpoint has it for each of its parameters.
struct Counter {
  int64_t* step;
  std::vector<std::pair<std::string, at::Tensor>> saved;
};

struct State {
  std::vector<StateEntry> entries;
  std::vector<Counter> counters;
};

enum class Purpose { save, load };

template <class Kind>
Kind& kept_for(optim::Optimizer& optimizer, const at::Tensor& leaf,
               const std::function<void(Kind&)>& first) {
  auto& place = optimizer.state()[leaf.unsafeGetTensorImpl()];
  if (!place) {
    auto made = std::make_unique<Kind>();
    first(*made);
    place = std::move(made);
  }
  return static_cast<Kind&>(*place);
}

template <class Options, class Kind>
Kept kept_by_adam(optim::Optimizer& optimizer, const optim::OptimizerOptions& options,
                  const at::Tensor& leaf) {
  const bool amsgrad = static_cast<const Options&>(options).amsgrad();
  Kind& kept = kept_for<Kind>(optimizer, leaf, [&](Kind& fresh) {
    fresh.exp_avg(at::zeros_like(leaf));
    fresh.exp_avg_sq(at::zeros_like(leaf));
    if (amsgrad) fresh.max_exp_avg_sq(at::zeros_like(leaf));
  });
  Kept found{{{"exp_avg", kept.exp_avg()}, {"exp_avg_sq", kept.exp_avg_sq()}}, &kept.step()};
  if (amsgrad) found.tensors.emplace_back("max_exp_avg_sq", kept.max_exp_avg_sq());
  return found;
}

Kept kept_by_sgd(optim::Optimizer& optimizer, const optim::OptimizerOptions& options,
                 const at::Tensor& leaf, Purpose purpose) {
  const auto& sgd = static_cast<const optim::SGDOptions&>(options);
  if (sgd.momentum() == 0) return {};
  auto& kept = kept_for<optim::SGDParamState>(optimizer, leaf, [&](optim::SGDParamState& fresh) {
    // The first gradient enters undamped, so zeros would not do.
    require(sgd.dampening() == 0 || purpose == Purpose::load, ExitCode::usage,
            "SGD with dampening = ", sgd.dampening(),
            " has no momentum before its first step; save after it");
    fresh.momentum_buffer(at::zeros_like(leaf));
  });
  return {{{"momentum", kept.momentum_buffer()}}};
}

Kept kept_by_rmsprop(optim::Optimizer& optimizer, const optim::OptimizerOptions& options,
                     const at::Tensor& leaf) {
  const auto& rmsprop = static_cast<const optim::RMSpropOptions&>(options);
  using Kind = optim::RMSpropParamState;
  auto& kept = kept_for<Kind>(optimizer, leaf, [&](Kind& fresh) {
    fresh.square_avg(at::zeros_like(leaf));
    if (rmsprop.momentum() > 0) fresh.momentum_buffer(at::zeros_like(leaf));
    if (rmsprop.centered()) fresh.grad_avg(at::zeros_like(leaf));
  });
  Kept found{{{"square_avg", kept.square_avg()}}, &kept.step()};
  if (rmsprop.momentum() > 0) found.tensors.emplace_back("momentum", kept.momentum_buffer());
  if (rmsprop.centered()) found.tensors.emplace_back("grad_avg", kept.grad_avg());
  return found;
}

Kept kept_by_adagrad(optim::Optimizer& optimizer, const at::Tensor& leaf) {
  using Kind = optim::AdagradParamState;
  auto& kept = kept_for<Kind>(optimizer, leaf, [](Kind&) {});  // the constructor made it
  return {{{"sum", kept.sum()}}, &kept.step()};
}

Kept kept_by(optim::Optimizer& optimizer, const optim::OptimizerOptions& options,
             const at::Tensor& leaf, Purpose purpose) {
  if (dynamic_cast<optim::AdamW*>(&optimizer))
    return kept_by_adam<optim::AdamWOptions, optim::AdamWParamState>(optimizer, options, leaf);
  if (dynamic_cast<optim::Adam*>(&optimizer))
    return kept_by_adam<optim::AdamOptions, optim::AdamParamState>(optimizer, options, leaf);
  if (dynamic_cast<optim::SGD*>(&optimizer)) return kept_by_sgd(optimizer, options, leaf, purpose);
  if (dynamic_cast<optim::RMSprop*>(&optimizer)) return kept_by_rmsprop(optimizer, options, leaf);
  if (dynamic_cast<optim::Adagrad*>(&optimizer)) return kept_by_adagrad(optimizer, leaf);
  fail(ExitCode::usage,
       "the state of this optimizer is not known (AdamW, Adam, SGD, RMSprop and Adagrad are); "
       "describe it with shard_entries() and save those entries too");
}

// The options of the group that holds `leaf`; null if the optimizer does not step it.
const optim::OptimizerOptions* options_for(optim::Optimizer& optimizer, const at::Tensor& leaf) {
  for (auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.is_same(leaf)) return &group.options();
  return nullptr;
}

// A frozen parameter gets no state from steps. One that was trained before has some.
bool has_state(optim::Optimizer& optimizer, const Leaf& leaf) {
  const auto& state = optimizer.state();
  return leaf.trained || state.find(leaf.tensor.unsafeGetTensorImpl()) != state.end();
}

void append(std::vector<StateEntry>& to, std::vector<StateEntry> entries) {
  to.insert(to.end(), std::make_move_iterator(entries.begin()),
            std::make_move_iterator(entries.end()));
}

State state_of(const Module& module, optim::Optimizer* optimizer, Purpose purpose) {
  State state{module.buffers, {}};
  size_t stepped = 0;
  for (const Leaf& leaf : module.leaves) {
    append(state.entries, leaf.cut(leaf.tensor.detach(), "parameter"));
    const auto* options = optimizer ? options_for(*optimizer, leaf.tensor) : nullptr;
    if (!options) continue;
    ++stepped;
    if (!has_state(*optimizer, leaf)) continue;
    const Kept kept = kept_by(*optimizer, *options, leaf.tensor, purpose);
    if (!leaf.trained && kept.step && *kept.step == 0) continue;  // Adagrad makes it in advance
    for (const auto& [role, tensor] : kept.tensors) append(state.entries, leaf.cut(tensor, role));
    if (!kept.step) continue;
    state.counters.push_back({kept.step, {}});
    for (const auto& name : leaf.names) {
      const at::Tensor step = at::full({}, *kept.step, at::kLong);
      state.counters.back().saved.emplace_back(name, step);
      state.entries.push_back(whole_entry(name, "step", step));
    }
  }
  size_t held = 0;
  if (optimizer)
    for (const auto& group : optimizer->param_groups()) held += group.params().size();
  require(stepped == held, ExitCode::usage, "the optimizer steps ", held, " tensors, ", stepped,
          " of them parameters of this module; make it from the module's parameters()");
  return state;
}

// The counters are numbers of the optimizer, not tensors: they are set after loading.
void set_steps(const std::vector<Counter>& counters, const std::string& path) {
  for (const Counter& counter : counters) {
    if (counter.saved.empty()) continue;
    const auto& [first, value] = counter.saved.front();
    for (const auto& [name, other] : counter.saved)
      require(at::equal(value, other), ExitCode::checkpoint, path, ": ", first, " had ",
              value.item<int64_t>(), " updates and ", name, " ", other.item<int64_t>(),
              ", but here one optimizer step is for both; put them into different blocks");
    *counter.step = value.item<int64_t>();
  }
}

std::vector<StateEntry> buffers_of(torch::nn::Module& module) {
  std::vector<StateEntry> buffers;
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_buffers())
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      buffers.push_back(whole_entry(item.key(), "buffer", item.value()));
  return buffers;
}

Module describe(torch::nn::Module& module) {
  Module described{{}, buffers_of(module)};
  std::set<const at::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    const std::string name = item.key();
    described.leaves.push_back({item.value(),
                                item.value().requires_grad(),
                                {name},
                                [name](const at::Tensor& tensor, const std::string& role) {
                                  return std::vector{whole_entry(name, role, tensor)};
                                }});
  }
  return described;
}

// The trained or the frozen parameters of a unit in a tensor that begins as its part does.
std::vector<StateEntry> cut_unit(const Unit& unit, bool trained, const at::Tensor& like_shard,
                                 const std::string& role) {
  std::vector<StateEntry> entries;
  for (const ParameterShard& shard : unit.shards()) {
    if (shard.parameter->spec.trainable != trained) continue;
    const int64_t first = shard.values.storage_offset() - unit.value_shard().storage_offset();
    append(entries, shard_entries(shard.parameter->spec, shard.range.begin, shard.range.end,
                                  like_shard.narrow(0, first, shard.range.count()), role));
  }
  return entries;
}

Module describe(ShardedModule& module) {
  Module described{{}, buffers_of(module.module())};
  const auto leaves = module.parameters();
  for (size_t i = 0; i < leaves.size(); ++i) {
    Unit& unit = module.engine().unit(i);
    for (bool trained : {true, false}) {
      Leaf leaf{trained ? leaves[i] : unit.value_shard(),
                trained,
                {},
                [&unit, trained](const at::Tensor& tensor, const std::string& role) {
                  return cut_unit(unit, trained, tensor, role);
                }};
      for (const Parameter& parameter : unit.parameters())
        if (parameter->spec.trainable == trained) leaf.names.push_back(parameter->spec.name);
      described.leaves.push_back(std::move(leaf));
    }
  }
  return described;
}

RunState load(Communicator& world, const std::string& path, const Module& module,
              optim::Optimizer* optimizer, const LoadOptions& options) {
  const State state = state_of(module, optimizer, Purpose::load);
  RunState run = load_checkpoint(world, path, state.entries, options);
  set_steps(state.counters, path);
  return run;
}

}  // namespace

std::vector<StateEntry> module_state(ShardedModule& module, optim::Optimizer* optimizer) {
  return state_of(describe(module), optimizer, Purpose::save).entries;
}

std::vector<StateEntry> module_state(torch::nn::Module& module, optim::Optimizer* optimizer) {
  return state_of(describe(module), optimizer, Purpose::save).entries;
}

RunState load_module(Communicator& world, const std::string& path, ShardedModule& module,
                     optim::Optimizer* optimizer, const LoadOptions& options) {
  module.engine().wait_gradients();  // peers no longer read what is overwritten
  RunState run = load(world, path, describe(module), optimizer, options);
  module.finish_step();
  return run;
}

RunState load_module(Communicator& world, const std::string& path, torch::nn::Module& module,
                     optim::Optimizer* optimizer, const LoadOptions& options) {
  return load(world, path, describe(module), optimizer, options);
}

}  // namespace phalanx
