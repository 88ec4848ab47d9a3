#pragma once

#include <string>
#include <vector>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/shard/module.h"

namespace torch::optim {
class Optimizer;
}

namespace phalanx {

// The state of a user's own module and of LibTorch's optimizer over it, for checkpoints. Names are
// those of module.named_parameters() and named_buffers(): what is loaded finds its place by name
// and shape, never by the order in which layers were made; a tied parameter goes by its first name.
//
//   role                                            of
//   parameter, buffer                               the module; buffers are taken to be the same on
//                                                   all ranks
//   exp_avg, exp_avg_sq, max_exp_avg_sq             AdamW, Adam
//   momentum, square_avg, grad_avg, sum             SGD, RMSprop, Adagrad
//   step                                            all but SGD: updates of this parameter, int64
//
// An optimizer makes its state in its first step; here it is made before, with the values that the
// step would give it. Frozen parameters have none, unless they were trained before: load first,
// then freeze. Learning rates and other options are the program's and are not saved. Other
// optimizers are refused with Error(usage): describe their state with shard_entries().

/// Views of the state as this rank holds it, to be saved: of a sharded module, whose optimizer was
/// made from sharded.parameters(), ...
std::vector<StateEntry> module_state(ShardedModule& module,
                                     torch::optim::Optimizer* optimizer = nullptr);
/// ... or of a module that every rank holds whole.
std::vector<StateEntry> module_state(torch::nn::Module& module,
                                     torch::optim::Optimizer* optimizer = nullptr);

/// Fills module and optimizer from a checkpoint of either kind, whatever the number of ranks and
/// the strategy that wrote it, and returns what was saved beside the tensors. Collective; errors
/// and options are those of load_checkpoint().
RunState load_module(Communicator& world, const std::string& path, ShardedModule& module,
                     torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});
RunState load_module(Communicator& world, const std::string& path, torch::nn::Module& module,
                     torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});

}  // namespace phalanx
