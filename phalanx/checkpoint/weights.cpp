#include "phalanx/checkpoint/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

// What a rank sees of a source, to be compared with the others: all that decides what is read.
std::string fingerprint(const Source& source) {
  Hasher hasher;
  for (const auto& entry : source.manifest.entries) {
    std::string line =
        text(entry.name, ' ', entry.role, ' ', name(entry.dtype), ' ', join(entry.shape));
    for (const auto& part : entry.parts)
      line += text(' ', part.file, ' ', part.offset, ' ', part.bytes, ' ', join(part.box.offset),
                   ' ', join(part.box.size), ' ', join(part.strides), ' ',
                   part.hash ? to_hex(*part.hash) : "");
    hasher.add(line.data(), static_cast<int64_t>(line.size()));
  }
  return to_hex(hasher.result());
}

// Rank 0 says what `path` means, a run's newest checkpoint for example; all open it.
Source open_by_all(Communicator& world, const std::string& path) {
  Source source;
  const auto find = [&] {
    source = open_source(path);
    return source.path;
  };
  const std::string found = agree_with_first(world, "weights", find, disk_deadline);
  const auto open = [&] {
    if (world.rank() != 0) source = open_source(found, false);
    return fingerprint(source);
  };
  const auto seen = agree(world, "weights", open, disk_deadline);
  for (size_t rank = 1; rank < seen.size(); ++rank)
    require(seen[rank] == seen[0], ExitCode::checkpoint, "rank ", rank, " finds other tensors in ",
            found, " than rank 0; copy the same files to all hosts");
  return source;
}

// Tied tensors of Hugging Face, and the tensor of our table whose values each of them has.
std::map<std::string, std::string> tied_names(const ModelSpec& model) {
  std::map<std::string, std::string> by_parameter, tied;
  for (const BlockSpec& block : blocks(model))
    for (const ParameterSpec& parameter : block.parameters)
      by_parameter[parameter.name] = parameter.pieces[0].name;
  for (const ParameterSpec& parameter : tied_parameters(model))
    tied[parameter.pieces[0].name] = by_parameter.at(*parameter.tied_to);
  return tied;
}

// Whether `saved` has the values that were loaded into `part`, a piece at a time.
bool equal_values(const Source& source, const ManifestEntry& saved, const StatePart& part) {
  bool equal = true;
  for_each_slice(part.box, 1 << 20, [&](const Box& slice) {
    if (!equal) return;
    const at::Tensor mine = view_of(part.local.detach(), part.box, slice).cpu();
    const at::Tensor other = at::empty(slice.size, mine.options());
    read_box(source, saved, slice, other);
    equal = at::equal(mine, other);
  });
  return equal;
}

const ManifestEntry* find_parameter(const Source& source, const std::string& name) {
  for (const auto& entry : source.manifest.entries)
    if (entry.name == name && entry.role == "parameter") return &entry;
  return nullptr;
}

void compare_tied(const Source& source, const std::string& head, const std::string& embedding,
                  std::span<const StateEntry> entries) {
  const ManifestEntry* saved = find_parameter(source, head);
  if (!saved) return;
  for (const StateEntry& entry : entries) {
    if (entry.name != embedding || entry.role != "parameter") continue;
    bool equal = saved->shape == entry.global_shape;
    for (const StatePart& part : entry.parts) equal = equal && equal_values(source, *saved, part);
    require(equal, ExitCode::checkpoint, source.path, " holds a ", head,
            " of its own, with other values than ", embedding,
            ", but the model ties them; set model.tie_word_embeddings = false");
  }
}

void verify_content(Communicator& world, const Source& source) {
  if (source.format != "phalanx") {
    if (world.rank() == 0)
      log_warning(text(source.path, " (", source.format, ") has no hashes to compare"));
    return;
  }
  const std::string damaged =
      content_defect(world, *source.storage, source.folder, source.manifest);
  require(damaged.empty(), ExitCode::checkpoint, damaged);
}

// An index that does not list a tensor is a mistake of its own, beside files and tensors that are
// not where it says.
void require_listed(const Source& source, const ModelSpec& model) {
  if (source.index.empty()) return;
  std::vector<std::string> lost;
  for (const BlockSpec& block : blocks(model))
    for (const ParameterSpec& parameter : block.parameters)
      for (const Piece& piece : parameter.pieces)
        if (!find_parameter(source, piece.name)) lost.push_back(piece.name);
  require(lost.empty(), ExitCode::checkpoint, source.index, " does not list ", join(lost),
          ", which the model has: it is of another model or revision, or was cut");
}

}  // namespace

std::string LoadedWeights::describe() const {
  return format == "phalanx" ? text("the weights of ", path, " after step ", step)
                             : text("the weights of ", path, " (", format, ")");
}

LoadedWeights load_weights(Communicator& world, const std::string& path, const ModelSpec& model,
                           std::span<const StateEntry> entries, LoadOptions options) {
  at::NoGradGuard no_grad;
  const Source source = open_by_all(world, path);
  if (options.verify_hashes) verify_content(world, source);
  if (options.allow_missing.empty()) require_listed(source, model);
  options.roles = {"parameter"};
  const auto tied = tied_names(model);
  Manifest own = source.manifest;  // what has a place of its own
  std::erase_if(own.entries, [&](const auto& entry) { return tied.contains(entry.name); });
  load_entries(world, *source.storage, source.folder, own, entries, options);
  const auto compare = [&] {
    for (const auto& [head, embedding] : tied) compare_tied(source, head, embedding, entries);
    return std::string();
  };
  agree(world, "tied", compare, disk_deadline);
  LoadedWeights loaded{source.path, source.format, source.manifest.run.step, ""};
  const auto config = source.manifest.run.values.find(huggingface_config_key);
  if (config != source.manifest.run.values.end())
    loaded.huggingface_config = std::get<std::string>(config->second);
  return loaded;
}

bool has_weights(Communicator& world, const std::string& folder) {
  const auto look = [&]() -> std::string {
    if (find_source(folder)) return "yes";
    for (const auto& item : open_storage(folder)->list(""))
      for (const char* beginning :
           {"pytorch_model", "tf_model", "flax_model", "model.", "rust_model"})
        require(
            !item.name.starts_with(beginning), ExitCode::checkpoint, folder,
            " holds its weights as ", item.name,
            ", a form that cannot be read here; convert them to safetensors, or remove the file "
            "to start from initial values");
    return "";
  };
  return !agree_with_first(world, "weights", look, disk_deadline).empty();
}

void refuse_weights_only(Communicator& world, const std::string& path,
                         std::span<const StateEntry> wanted) {
  const auto look = [&] {
    const auto found = find_source(path);
    if (!found) return std::string();  // loading says so
    const Source& source = *found;
    std::map<std::string, int64_t> present;
    std::set<std::string> missing;
    for (const auto& entry : source.manifest.entries) ++present[entry.role];
    for (const auto& entry : wanted)
      if (!present.contains(entry.role)) missing.insert(entry.role);
    const bool has_position = source.manifest.run.values.contains("updates");
    if (source.format == "phalanx" && has_position && (missing.empty() || present.size() > 1))
      return std::string();
    if (!has_position) missing.insert("the position in the data");
    std::vector<std::string> there;
    for (const auto& [role, count] : present) there.push_back(text(role, " (", count, " tensors)"));
    fail(ExitCode::checkpoint, source.path, " cannot be resumed: it holds ", join(there),
         " and lacks ", join(missing), "; train.init_from = \"", path,
         "\" starts a new run from its weights, with another train.run_dir or with train.resume = "
         "\"never\"");
  };
  agree_with_first(world, "weights only", look, disk_deadline);
}

}  // namespace phalanx
