#include "phalanx/checkpoint/state_file.h"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/hash.h"

namespace phalanx {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

bool may_pass(int error) {
  for (int passing : {EIO, EREMOTEIO, ETIMEDOUT, ESTALE, EAGAIN, ENOLCK, EHOSTDOWN, ENETDOWN})
    if (error == passing) return true;
  return false;
}

void pause(milliseconds time, const TaskProgress& progress) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!progress.cancelled && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::min(time, milliseconds(20)));
}

// A write or a flush that failed may have lost what was written before, so `work` starts anew.
template <class Work>
auto with_retries(const WriteOptions& options, const TaskProgress& progress, const Work& work) {
  milliseconds wait = options.retry_pause;
  for (int left = 4;; --left) try {
      return work();
    } catch (const SystemError& error) {
      if (!may_pass(error.number()) || left == 0 || progress.cancelled) throw;
      log_warning(text(error.what(), "; tried again in ", wait.count(), " ms, ", left,
                       left == 1 ? " try" : " tries", " left"));
      pause(wait, progress);
      wait *= 4;
    }
}

FileReport write_once(Storage& storage, const std::string& path, const StateFile& file,
                      TaskProgress& progress) {
  std::vector<TensorInfo> infos = file.parts;
  const std::string header =
      safetensors_header(infos, {{"format", "pt"}, {"phalanx_step", std::to_string(file.step)}});
  FileReport report{static_cast<int64_t>(header.size()), {}};
  const auto out = storage.create(path);
  out->write(header.data(), report.data_begin);
  for (size_t part = 0; part < file.parts.size(); ++part) {
    Hasher hasher;
    file.read(part, [&](const char* bytes, int64_t count) {
      if (progress.cancelled) return;
      hasher.add(bytes, count);
      out->write(bytes, count);
      progress.done += count;
    });
    report.hashes.push_back(hasher.result());
  }
  if (!progress.cancelled) out->finish();
  return report;
}

void verify_file(const Storage& storage, const std::string& path, const StateFile& file,
                 const FileReport& report, TaskProgress& progress) {
  drop_cached_pages(storage.path(path));
  const auto in = storage.open(path);
  int64_t offset = report.data_begin;
  for (size_t part = 0; part < file.parts.size() && !progress.cancelled; ++part) {
    Hasher hasher;
    for_each_piece(*in, offset, file.parts[part].bytes, [&](const char* bytes, int64_t count) {
      hasher.add(bytes, count);
      progress.done += count;
    });
    require(hasher.result() == report.hashes[part], ExitCode::checkpoint, in->path(),
            " does not hold what was written: ", file.parts[part].name, " (bytes ", offset, " to ",
            offset + file.parts[part].bytes,
            ") has another hash; the disk or the memory of this machine is faulty");
    offset += file.parts[part].bytes;
  }
}

}  // namespace

int64_t StateFile::bytes() const {
  int64_t sum = 0;
  for (const auto& part : parts) sum += part.bytes;
  return sum;
}

std::string to_bytes(const FileReport& report) {
  const auto bytes = json::to_cbor({{"data", report.data_begin}, {"hashes", report.hashes}});
  return {bytes.begin(), bytes.end()};
}

FileReport file_report(const std::string& bytes) {
  const json fields = json::from_cbor(bytes);
  return {fields.at("data").get<int64_t>(), fields.at("hashes").get<std::vector<Hash>>()};
}

FileReport write_state_file(Storage& storage, const std::string& folder, const StateFile& file,
                            const WriteOptions& options, TaskProgress& progress) {
  if (file.parts.empty()) return {};
  const std::string path = folder + "/" + file.name;
  return with_retries(options, progress, [&] {
    const FileReport report = write_once(storage, path, file, progress);
    if (options.verify && !progress.cancelled) verify_file(storage, path, file, report, progress);
    return report;
  });
}

StateFile written_file(std::shared_ptr<const Storage> storage, const std::string& folder,
                       const StateFile& file, const FileReport& report) {
  if (file.parts.empty()) return file;
  StateFile written = file;
  int64_t end = report.data_begin;
  for (TensorInfo& part : written.parts) part.offset = end, end += part.bytes;
  std::shared_ptr<const Reader> in = storage->open(folder + "/" + file.name);
  written.read = [in, parts = written.parts](size_t part, const UsePiece& use) {
    for_each_piece(*in, parts[part].offset, parts[part].bytes, use);
  };
  return written;
}

Manifest finish_manifest(const SavePlan& plan, const std::vector<std::string>& reports,
                         const RunState& run) {
  const int ranks = static_cast<int>(reports.size());
  Manifest manifest;
  manifest.run = run;
  manifest.entries = plan.entries;
  std::vector<FileReport> files;
  for (const auto& report : reports) files.push_back(file_report(report));
  std::vector<size_t> next(ranks);
  std::vector<int64_t> ends;
  for (const auto& file : files) ends.push_back(file.data_begin);
  for (const auto& planned : plan.parts) {
    const int writer = planned.writer;
    auto& part = manifest.entries[planned.entry].parts[planned.part];
    part.file = state_file_name(writer, ranks);
    part.offset = ends[writer];
    part.hash = files[writer].hashes.at(next[writer]++);
    ends[writer] += part.bytes;
  }
  for (int rank = 0; rank < ranks; ++rank)
    if (ends[rank] > 0) manifest.files[state_file_name(rank, ranks)] = ends[rank];
  return manifest;
}

void write_manifest(Storage& storage, const std::string& folder, const std::string& json,
                    const WriteOptions& options, TaskProgress& progress) {
  const std::string hash = manifest_hash_line(json);
  for (const auto& [name, contents] :
       {std::pair("manifest.json.xxh128", &hash), std::pair("manifest.json", &json)})
    with_retries(options, progress, [&, name = name, contents = contents] {
      const auto file = storage.create(folder + "/" + name);
      file->write(contents->data(), static_cast<int64_t>(contents->size()));
      file->finish();
      return 0;
    });
}

}  // namespace phalanx
