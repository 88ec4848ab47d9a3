#include <ATen/ATen.h>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/export.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/lock.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/state_file.h"
#include "phalanx/checkpoint/stream.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

using Tensors = std::vector<const ManifestEntry*>;

Tensors by_name(const Source& source) {
  Tensors tensors;
  for (const auto& [key, entry] : by_key(source.manifest)) tensors.push_back(entry);
  return tensors;
}

// One rank writes every tensor, whole.
SavePlan plan_import(const Tensors& tensors) {
  SavePlan plan;
  for (const ManifestEntry* saved : tensors) {
    ManifestEntry entry{saved->name, saved->role, saved->dtype, saved->shape, {}};
    if (element_count(entry.shape) > 0) {
      ManifestEntry::Part part{};
      part.box = whole_box(entry.shape);
      part.bytes = element_count(entry.shape) * size_of(entry.dtype);
      entry.parts.push_back(std::move(part));
      plan.parts.push_back({plan.entries.size(), 0, 0, 0, 0});
    }
    plan.entries.push_back(std::move(entry));
  }
  wide_first(plan);
  return plan;
}

StateFile file_of(const Source& source, const Tensors& tensors, const SavePlan& plan,
                  int64_t step) {
  StateFile file{.name = state_file_name(0, 1), .step = step};
  Tensors order;
  for (const PlannedPart& planned : plan.parts) {
    const ManifestEntry& entry = plan.entries[planned.entry];
    const ManifestEntry::Part& part = entry.parts[0];
    file.parts.push_back({part_name(entry, part.box), entry.dtype, entry.shape, 0, part.bytes});
    order.push_back(tensors[planned.entry]);
  }
  file.read = [&source, order, buffer = at::empty({stream_buffer_bytes}, at::kByte)](
                  size_t part, const UsePiece& use) {
    stream_tensor(source, *order[part], order[part]->dtype, buffer, use);
  };
  return file;
}

}  // namespace

std::string import_checkpoint(const Source& source, const std::string& folder,
                              const RunState& run) {
  const PlaceLock lock(folder);
  const auto storage = open_storage(folder);
  for (const auto& item : storage->list(""))
    require(step_of(item.name) != run.step, ExitCode::checkpoint, storage->path(item.name),
            " exists already; name another folder, or remove it first");
  require_hashes(source);
  const Tensors tensors = by_name(source);
  const SavePlan plan = plan_import(tensors);
  const StateFile file = file_of(source, tensors, plan, run.step);
  const std::string unfinished = storage->begin(run.step);
  try {
    TaskProgress progress;
    const FileReport report = write_state_file(*storage, unfinished, file, {}, progress);
    Manifest manifest = finish_manifest(plan, {to_bytes(report)}, run);
    manifest.created = creation_time(*storage);
    require_sizes(*storage, unfinished, manifest);  // nobody has cleaned up here meanwhile
    write_manifest(*storage, unfinished, to_json(manifest), {}, progress);
    return storage->path(publish(*storage, unfinished, run.step));
  } catch (...) {
    try {
      storage->remove(unfinished);
    } catch (const Error&) {  // the next start removes it
    }
    throw;
  }
}

}  // namespace phalanx
