#pragma once

#include <string>
#include <vector>

namespace phalanx {

/// Our name and role for a tensor of PyTorch's; left out if the name is empty.
struct TorchName {
  std::string name, role;
};

struct TorchNames {
  std::vector<TorchName> names;      ///< one for each path
  std::vector<std::string> notices;  ///< sentences for the log
};

/// Names for tensors that lie under `paths` (keys of nested dicts) in what PyTorch saved.
///
/// Optimizer states `optimizer.state.NAME.SLOT` (any key that begins with "opt", or none) have role
/// SLOT, "momentum" for momentum_buffer; states under numbers are left out. All others are
/// parameters, named by their keys joined by '.', without those of the caller: the keys of the one
/// dict that is called model, module, net, network, state_dict, model_state_dict or weights; else
/// what all names have before those that the optimizer states have. What does not begin so has the
/// role "other" and its whole name. Wrappers' parts ("_orig_mod.", "_fsdp_wrapped_module.",
/// "module." before all) are dropped.
TorchNames name_torch_tensors(const std::vector<std::vector<std::string>>& paths);

/// "a, b, c and 5 more".
std::string some_of(const std::vector<std::string>& names);

}  // namespace phalanx
