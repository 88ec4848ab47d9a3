#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/export.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/checkpoint/stream.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

// Later than every checkpoint that is there, even if the clock was set back.
int64_t creation_time(const Storage& storage) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  int64_t created = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  for (const auto& candidate : candidates(storage))
    created = std::max(created, candidate.created + 1);
  return created;
}

// Writes one file with all tensors of `source`, whole; returns what it holds.
std::vector<ManifestEntry> write_tensors(const Source& source, Storage& storage,
                                         const std::string& folder, int64_t step) {
  const std::string name = state_file_name(0, 1);
  std::map<std::string, const ManifestEntry*> by_name;
  std::vector<TensorInfo> infos;
  for (const auto& entry : source.manifest.entries) {
    infos.push_back({part_name(entry, whole_box(entry.shape)), entry.dtype, entry.shape, 0,
                     element_count(entry.shape) * size_of(entry.dtype)});
    by_name[infos.back().name] = &entry;
  }
  wide_first(infos);
  const std::string header =
      safetensors_header(infos, {{"format", "pt"}, {"phalanx_step", std::to_string(step)}});
  const auto file = storage.create(in_folder(folder, name));
  file->write(header.data(), static_cast<int64_t>(header.size()));
  const at::Tensor buffer = at::empty({stream_buffer_bytes}, at::kByte);
  std::vector<ManifestEntry> written;
  for (const TensorInfo& info : infos) {
    const ManifestEntry& entry = *by_name.at(info.name);
    Hasher hasher;
    stream_tensor(source, entry, entry.dtype, buffer, [&](const void* data, int64_t bytes) {
      hasher.add(data, bytes);
      file->write(data, bytes);
    });
    written.push_back({entry.name, entry.role, entry.dtype, entry.shape, {}});
    if (info.bytes > 0)
      written.back().parts.push_back(
          {whole_box(entry.shape), name, info.offset, info.bytes, hasher.result(), {}});
  }
  file->finish();
  return written;
}

}  // namespace

std::string import_checkpoint(const Source& source, const std::string& folder,
                              const RunState& run) {
  const auto storage = open_storage(folder);
  for (const auto& item : storage->list(""))
    require(step_of(item.name) != run.step, ExitCode::checkpoint, storage->path(item.name),
            " exists already; name another folder, or remove it first");
  const std::string unfinished = storage->begin(run.step);
  try {
    Manifest manifest;
    manifest.run = run;
    manifest.created = creation_time(*storage);
    manifest.entries = write_tensors(source, *storage, unfinished, run.step);
    manifest.files[state_file_name(0, 1)] =
        storage->open(in_folder(unfinished, state_file_name(0, 1)))->size();
    std::sort(manifest.entries.begin(), manifest.entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.name, a.role) < std::tie(b.name, b.role);
    });
    const std::string json = to_json(manifest), name = in_folder(unfinished, "manifest.json");
    storage->replace(name + ".xxh128", manifest_hash_line(json));
    storage->replace(name, json);
    return publish(*storage, unfinished, run.step);
  } catch (...) {
    try {
      storage->remove(unfinished);
    } catch (const Error&) {  // the next start removes it
    }
    throw;
  }
}

}  // namespace phalanx
