#include "phalanx/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

bool is_step_name(const std::string& name) {
  return name.size() > 5 && name.starts_with("step-") &&
         std::all_of(name.begin() + 5, name.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  require(!error || error == std::errc::no_such_file_or_directory, ExitCode::checkpoint,
          "cannot read the folder of checkpoints ", folder, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

Candidate candidate(const std::string& path) {
  try {
    const Manifest manifest = read_manifest(path);
    const auto defects = size_defects(path, manifest);
    return {path, defects.empty() ? manifest.created : 0, join(defects, "; ")};
  } catch (const std::exception& error) {
    return {path, 0, error.what()};
  }
}

// Puts `aside` in the place of the folder `target`, which exists.
void replace(const std::string& aside, const std::string& target) {
  if (renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return;
  // This file system cannot exchange two names. Between the two renames only the older checkpoints
  // are there; the next start removes the old one under its temporary name.
  const std::string old = aside + "-old";
  rename_path(target, old, ExitCode::checkpoint);
  rename_path(aside, target, ExitCode::checkpoint);
  rename_path(old, aside, ExitCode::checkpoint);
}

// `latest` is for people and scripts; we look at the checkpoints themselves. Some file systems
// refuse to replace a file while another process reads it, so a failure is not the save's.
void point_latest(const std::string& folder, const std::string& name) {
  for (int attempt = 0; attempt < 3; ++attempt) try {
      replace_file(folder + "/latest", name + "\n", ExitCode::checkpoint);
      return;
    } catch (const Error& error) {
      if (attempt == 2)
        log_warning(text("the checkpoint is complete, but: ", error.what()));
      else
        usleep(50'000 << attempt);
    }
}

}  // namespace

std::vector<Candidate> candidates(const std::string& folder) {
  std::vector<Candidate> found;
  for (const auto& name : names_in(folder))
    if (is_step_name(name)) found.push_back(candidate(folder + "/" + name));
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.created > b.created; });
  return found;
}

std::string publish(const std::string& folder, const std::string& aside, int64_t step) {
  const std::string name = text("step-", step), target = folder + "/" + name;
  if (fs::exists(target))
    replace(aside, target);
  else
    rename_path(aside, target, ExitCode::checkpoint);
  sync_folder(folder, ExitCode::checkpoint);
  point_latest(folder, name);
  return target;
}

void delete_old(const std::string& folder, int keep) try {
  auto found = candidates(folder);
  std::erase_if(found, [](const auto& candidate) { return !candidate.defect.empty(); });
  for (size_t i = keep; i < found.size(); ++i) {
    const std::string doomed =
        folder + "/.tmp-delete-" + fs::path(found[i].path).filename().string();
    rename_path(found[i].path, doomed, ExitCode::checkpoint);  // never half a checkpoint
    remove_tree(doomed, ExitCode::checkpoint);
  }
} catch (const std::exception& error) {
  log_warning(text("an old checkpoint was not deleted: ", error.what()));
}

void remove_unfinished(const std::string& folder) {
  for (const auto& name : names_in(folder))
    if (name.starts_with(".tmp-")) remove_tree(folder + "/" + name, ExitCode::checkpoint);
}

}  // namespace phalanx
