#include "phalanx/checkpoint/torch_names.h"

#include <algorithm>
#include <optional>
#include <set>

#include "phalanx/base/text.h"

namespace phalanx {
namespace {

const std::set<std::string> model_keys = {"model",      "module",           "net",    "network",
                                          "state_dict", "model_state_dict", "weights"};
const std::set<std::string> slots = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer",
                                     "step"};
constexpr const char* wrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.",
                                    "_checkpoint_wrapped_module."};

using Path = std::vector<std::string>;

std::string without_wrappers(std::string name) {
  for (const std::string wrapper : wrappers)
    for (size_t at; (at = name.find(wrapper)) != std::string::npos;) name.erase(at, wrapper.size());
  return name;
}

bool all_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Name and slot of an optimizer's tensor; none if the tensor is no such.
std::optional<TorchName> optimizer_name(const std::string& whole) {
  const size_t last = whole.rfind('.');
  if (last == std::string::npos || !slots.contains(whole.substr(last + 1))) return std::nullopt;
  for (size_t at = whole.find("state."); at != std::string::npos;
       at = whole.find("state.", at + 1)) {
    if (at > 0 && whole[at - 1] != '.') continue;
    const std::string before = whole.substr(0, at);
    const bool optimizer =
        before.empty() || before.starts_with("opt") || before.find(".opt") != std::string::npos;
    const size_t begin = at + std::string("state.").size();
    if (optimizer && begin < last)
      return TorchName{whole.substr(begin, last - begin), whole.substr(last + 1)};
  }
  return std::nullopt;
}

Path caller_keys(const Path& path) {
  return {path.begin(), path.empty() ? path.end() : path.end() - 1};
}

// The dict of the parameters, by its path; none if it is not clear.
std::optional<Path> model_dict(const std::set<Path>& dicts) {
  std::optional<Path> found;
  for (const Path& dict : dicts)
    if (!dict.empty() && model_keys.contains(dict.back())) {
      if (found) return std::nullopt;
      found = dict;
    }
  return found;
}

// What precedes the parameters' names, where the optimizer's states tell these names; none if the
// states of all do not agree.
std::optional<std::string> prefix_before(const std::set<std::string>& states,
                                         const std::set<std::string>& parameters) {
  if (states.empty()) return std::nullopt;
  std::optional<std::string> found;
  for (const std::string& whole : parameters) {
    if (!whole.ends_with("." + *states.begin())) continue;
    const std::string prefix = whole.substr(0, whole.size() - states.begin()->size());
    const bool all = std::all_of(states.begin(), states.end(), [&](const auto& name) {
      return parameters.contains(prefix + name);
    });
    if (all && found) return std::nullopt;
    if (all) found = prefix;
  }
  return found;
}

// Drops a first "module." that every parameter has: DistributedDataParallel's.
void drop_module(std::vector<TorchName>& names) {
  bool any = false;
  for (const auto& [name, role] : names) {
    if (role != "parameter") continue;
    if (!name.starts_with("module.")) return;
    any = true;
  }
  for (auto& [name, role] : names)
    if (any && role != "other" && name.starts_with("module.")) name.erase(0, 7);
}

}  // namespace

std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t most = 8;
  if (names.size() <= most) return join(names);
  return text(join(std::vector(names.begin(), names.begin() + most)), " and ", names.size() - most,
              " more");
}

TorchNames name_torch_tensors(const std::vector<Path>& paths) {
  TorchNames out;
  std::set<Path> dicts;
  std::set<std::string> states, wholes;
  size_t numbered = 0;
  for (const Path& path : paths) {
    auto state = optimizer_name(without_wrappers(join(path, ".")));
    if (!state) dicts.insert(caller_keys(path)), wholes.insert(join(path, "."));
    if (state && all_digits(state->name)) ++numbered, state->name.clear();
    if (state && !state->name.empty()) states.insert(state->name);
    if (state && state->role == "momentum_buffer") state->role = "momentum";
    out.names.push_back(state.value_or(TorchName{}));
  }
  const std::optional<Path> model = model_dict(dicts);
  const std::optional<std::string> prefix =
      model ? join(*model, ".") + "." : prefix_before(states, wholes);
  std::vector<std::string> others;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!out.names[i].role.empty()) continue;
    const std::string whole = join(paths[i], ".");
    const size_t skipped = prefix ? prefix->size() : 0;
    const bool own = !prefix || (whole.starts_with(*prefix) && whole.size() > skipped);
    out.names[i] = own ? TorchName{without_wrappers(whole.substr(skipped)), "parameter"}
                       : TorchName{whole, "other"};
    if (!own) others.push_back(whole);
  }
  drop_module(out.names);
  if (numbered > 0)
    out.notices.push_back(text(numbered,
                               " tensors of an optimizer are left out: they are kept under "
                               "numbers, and which parameters these are is not in the file"));
  if (!others.empty())
    out.notices.push_back(text("tensors that are not below ", *prefix,
                               " have the role \"other\": ", some_of(others)));
  return out;
}

}  // namespace phalanx
