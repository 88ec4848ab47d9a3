#include "phalanx/checkpoint/save_job.h"

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {

std::string SaveJob::write(TaskProgress& progress) {
  Storage& to = local ? *local : *folder;
  const std::string& where = local ? local_unfinished : unfinished;
  const auto report = write_state_file(to, where, file, write_options(), progress);
  return to_bytes(report);
}

void SaveJob::make_manifest(TaskProgress& progress) {
  manifest = finish_manifest(*plan, reports, run);
  manifest.created = creation_time(*folder, &known, &progress);
  if (local)
    manifest.created = std::max(manifest.created, creation_time(*local, nullptr, &progress));
}

std::string SaveJob::publish_local(TaskProgress& progress) {
  make_manifest(progress);
  if (!size_defects(*local, local_unfinished, manifest).empty()) return "";
  write_manifest(*local, local_unfinished, to_json(manifest), write_options(), progress);
  if (progress.cancelled) return "";  // another save may be on its way by now
  const std::string name = publish(*local, local_unfinished, run.step);
  local_unfinished.clear();
  delete_old(*local, 1, 0, nullptr, progress);
  return name;
}

std::string SaveJob::copy(TaskProgress& progress) {
  const FileReport report = file_report(reports[rank]);
  const StateFile written = written_file(local, local_name, file, report);
  const auto copied = write_state_file(*folder, unfinished, written, write_options(), progress);
  require(progress.cancelled || copied == report, ExitCode::checkpoint, "the files in ",
          local->path(local_name), " changed while they were copied to ", folder->path(""));
  return "";
}

std::string SaveJob::publish_folder(TaskProgress& progress) {
  if (!local) make_manifest(progress);
  write_manifest(*folder, unfinished, to_json(manifest), write_options(), progress);
  if (progress.cancelled) return "";
  const std::string name = publish(*folder, unfinished, run.step);
  unfinished.clear();
  known.erase(name);  // what is there is looked at before others are deleted
  if (options.keep > 0)
    delete_old(*folder, options.keep, options.keep_every, &known, progress);
  else
    known[name] = manifest.created;
  return name;
}

void SaveJob::discard() {
  remove_local();
  if (rank != 0 || unfinished.empty()) return;
  try {
    folder->remove(unfinished);
  } catch (const Error&) {  // the next start removes it
  }
}

void SaveJob::remove_local() {
  if (!local || local_unfinished.empty()) return;
  try {
    local->remove(local_unfinished);
  } catch (const Error&) {  // the next start removes it
  }
}

}  // namespace phalanx
