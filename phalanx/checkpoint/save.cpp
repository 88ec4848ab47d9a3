#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/hash.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

using nlohmann::json;

// Row-major elements of `tensor`, hashed and written in pieces that stay in the cache.
Hash write_tensor(Writer& file, const at::Tensor& tensor) {
  const at::Tensor data = tensor.detach().cpu().contiguous();
  const char* bytes = static_cast<const char*>(data.const_data_ptr());
  const int64_t total = static_cast<int64_t>(data.nbytes());
  constexpr int64_t piece = 1 << 20;
  Hasher hasher;
  for (int64_t done = 0; done < total; done += piece) {
    const int64_t count = std::min(piece, total - done);
    hasher.add(bytes + done, count);
    file.write(bytes + done, count);
  }
  return hasher.result();
}

// Writes this rank's file. Tells the size of what precedes the data, and the hash of every part.
std::string write_state_file(Storage& storage, const std::string& folder, int rank, int ranks,
                             const SavePlan& plan, std::span<const StateEntry> entries,
                             const RunState& run) {
  std::vector<TensorInfo> infos;
  std::vector<const StatePart*> parts;
  for (const auto& planned : plan.parts) {
    if (planned.writer != rank) continue;
    const ManifestEntry& entry = plan.entries[planned.entry];
    const ManifestEntry::Part& part = entry.parts[planned.part];
    infos.push_back({part_name(entry, part.box), entry.dtype, part.box.size, 0, part.bytes});
    parts.push_back(&entries[planned.own_entry].parts[planned.own_part]);
  }
  json report = {{"data", 0}, {"hashes", json::array()}};
  if (!parts.empty()) {
    const std::string header =
        safetensors_header(infos, {{"format", "pt"}, {"phalanx_step", std::to_string(run.step)}});
    const auto file = storage.create(in_folder(folder, state_file_name(rank, ranks)));
    file->write(header.data(), static_cast<int64_t>(header.size()));
    report["data"] = header.size();
    for (const StatePart* part : parts)
      report["hashes"].push_back(write_tensor(*file, part->local));
    file->finish();
  }
  const auto bytes = json::to_cbor(report);
  return {bytes.begin(), bytes.end()};
}

// Fills in where every part went, from what the writers tell.
Manifest finish_manifest(SavePlan plan, const std::vector<std::string>& reports,
                         const RunState& run) {
  const int ranks = static_cast<int>(reports.size());
  std::vector<json> hashes(ranks);
  std::vector<int64_t> ends(ranks);
  std::vector<size_t> next(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    json report = json::from_cbor(reports[rank]);
    ends[rank] = report["data"].get<int64_t>();
    hashes[rank] = std::move(report["hashes"]);
  }
  for (const auto& planned : plan.parts) {
    const int writer = planned.writer;
    auto& part = plan.entries[planned.entry].parts[planned.part];
    part.file = state_file_name(writer, ranks);
    part.offset = ends[writer];
    part.hash = hashes[writer].at(next[writer]++).get<Hash>();
    ends[writer] += part.bytes;
  }
  Manifest manifest;
  manifest.run = run;
  manifest.entries = std::move(plan.entries);
  for (int rank = 0; rank < ranks; ++rank)
    if (ends[rank] > 0) manifest.files[state_file_name(rank, ranks)] = ends[rank];
  return manifest;
}

void write_manifest(Storage& storage, const std::string& folder, const Manifest& manifest) {
  const std::string text = to_json(manifest), hash = manifest_hash_line(text);
  for (const auto& [name, contents] :
       {std::pair("manifest.json.xxh128", &hash), std::pair("manifest.json", &text)}) {
    const auto file = storage.create(in_folder(folder, name));
    file->write(contents->data(), static_cast<int64_t>(contents->size()));
    file->finish();
  }
}

// Later than every checkpoint that is there, even if the clock was set back.
int64_t creation_time(const Storage& storage) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  int64_t created = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  for (const auto& candidate : candidates(storage))
    created = std::max(created, candidate.created + 1);
  return created;
}

void check_run(const RunState& run, const std::string& folder) {
  require(run.step >= 0 && run.consumed_samples >= 0, ExitCode::checkpoint, "cannot save step ",
          run.step, " after ", run.consumed_samples, " samples in ", folder);
  for (const auto& [key, value] : run.values)
    if (const double* number = std::get_if<double>(&value))
      require(std::isfinite(*number), ExitCode::checkpoint, "cannot save the value ", key, " = ",
              *number, " in ", folder, "; it must be finite");
}

}  // namespace

std::string save_checkpoint(Communicator& world, const std::string& folder, const RunState& run,
                            std::span<const StateEntry> entries, int keep) {
  const int rank = world.rank(), ranks = world.size();
  std::unique_ptr<Storage> storage;
  std::string unfinished;  // rank 0 makes it and names it to the others
  try {
    const auto told = agree(world, "folder", [&]() -> std::string {
      storage = open_storage(folder);
      if (rank != 0) return "";
      check_run(run, folder);
      return unfinished = storage->begin(run.step);
    });
    const auto described = agree(world, "plan", [&] { return describe_entries(entries); });
    const SavePlan plan = plan_save(described);
    const auto reports = agree(world, "write", [&] {
      return write_state_file(*storage, told[0], rank, ranks, plan, entries, run);
    });
    const auto published = agree(world, "publish", [&]() -> std::string {
      if (rank != 0) return "";
      Manifest manifest = finish_manifest(plan, reports, run);
      manifest.created = creation_time(*storage);
      write_manifest(*storage, unfinished, manifest);
      const std::string path = publish(*storage, unfinished, run.step);
      unfinished.clear();
      if (keep > 0) delete_old(*storage, keep);
      return path;
    });
    return published[0];
  } catch (...) {
    if (!unfinished.empty()) try {
        storage->remove(unfinished);
      } catch (const Error&) {  // the next start removes it
      }
    throw;
  }
}

}  // namespace phalanx
