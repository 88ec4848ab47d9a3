#include "phalanx/checkpoint/folder_storage.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view temporary = ".tmp-";

class FolderWriter final : public OutputFile {
 public:
  explicit FolderWriter(const std::string& path)
      : OutputFile(path, ExitCode::checkpoint), folder_(folder_of(path)) {}
  void finish() override {
    OutputFile::finish();
    sync_folder(folder_, ExitCode::checkpoint);
  }

 private:
  std::string folder_;
};

}  // namespace

FolderStorage::FolderStorage(std::string root) : root_(std::move(root)) {
  while (root_.size() > 1 && root_.ends_with('/')) root_.pop_back();
}

std::string FolderStorage::path(const std::string& name) const { return in_folder(root_, name); }

std::unique_ptr<Reader> FolderStorage::open(const std::string& name) const {
  return std::make_unique<InputFile>(path(name), ExitCode::checkpoint);
}

std::unique_ptr<Writer> FolderStorage::create(const std::string& name) {
  const std::string whole = path(name), parent = folder_of(whole);
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored)) make_folder(parent, ExitCode::checkpoint);
  return std::make_unique<FolderWriter>(whole);
}

void FolderStorage::replace(const std::string& name, std::string_view contents) {
  replace_file(path(name), contents, ExitCode::checkpoint);
}

std::vector<Storage::Item> FolderStorage::list(const std::string& folder) const {
  std::error_code error, unknown;
  std::vector<Item> items;
  for (fs::directory_iterator entry(path(folder), error), end; !error && entry != end;
       entry.increment(error)) {
    Item item{entry->path().filename().string()};
    item.is_link = entry->is_symlink(unknown);
    item.is_folder = entry->is_directory(unknown);
    if (!item.is_folder) {
      const auto bytes = entry->file_size(unknown);
      item.bytes = unknown ? 0 : static_cast<int64_t>(bytes);  // 0: a link to nothing, a pipe ...
    }
    items.push_back(std::move(item));
  }
  require(!error || error == std::errc::no_such_file_or_directory, ExitCode::checkpoint,
          "cannot read the folder ", path(folder), ": ", error.message(),
          error == std::errc::not_a_directory
              ? "; name the folder of a checkpoint, or one that holds some"
              : "");
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.name < b.name; });
  return items;
}

void FolderStorage::remove(const std::string& name) {
  std::string doomed = path(name);
  std::error_code ignored;
  if (fs::symlink_status(doomed, ignored).type() == fs::file_type::not_found) return;
  const fs::path given(name);
  if (fs::is_directory(doomed, ignored) && !given.filename().string().starts_with(temporary)) {
    const fs::path aside = given.parent_path() / ".tmp-delete-";
    const std::string renamed = path(aside.string() + given.filename().string());
    rename_path(doomed, renamed, ExitCode::checkpoint);  // never half a checkpoint
    doomed = renamed;
  }
  remove_tree(doomed, ExitCode::checkpoint);
}

std::string FolderStorage::begin(int64_t step) {
  const std::string name = text(temporary, "step-", step, "-", std::hex, std::random_device{}());
  make_folder(root_, ExitCode::checkpoint);
  make_folder(path(name), ExitCode::checkpoint, false);  // publish() flushes
  return name;
}

// One that another checkpoint of the step may have beside step-N.
std::string FolderStorage::free_name(int64_t step) const {
  for (int number = 2;; ++number)
    if (std::string name = text("step-", step, "-", number);
        kind_of_path(path(name), ExitCode::checkpoint) == PathKind::nothing)
      return name;
}

// Replaces step-N, which exists; returns where that lies now. One of the two is a checkpoint
// whenever this ends.
std::string FolderStorage::put_in_place(const std::string& unfinished, int64_t step) {
  const std::string target = path(text("step-", step)), aside = path(unfinished);
  try {
    exchange_paths(aside, target, ExitCode::checkpoint);
    return unfinished;
  } catch (const SystemError&) {  // this file system cannot
  }
  std::string replaced = free_name(step);
  rename_path(target, path(replaced), ExitCode::checkpoint);
  try {
    rename_path(aside, target, ExitCode::checkpoint);
  } catch (const Error&) {
    try {
      rename_path(path(replaced), target, ExitCode::checkpoint);
    } catch (const Error&) {  // it is a checkpoint under the other name too
    }
    throw;
  }
  return replaced;
}

std::string FolderStorage::publish(const std::string& unfinished, int64_t step) {
  std::string name = text("step-", step), replaced;
  if (kind_of_path(path(name), ExitCode::checkpoint) != PathKind::nothing)
    replaced = put_in_place(unfinished, step);
  else
    rename_path(path(unfinished), path(name), ExitCode::checkpoint);
  try {
    sync_folder(root_, ExitCode::checkpoint);
  } catch (const Error&) {  // nobody knows which of the two a crash leaves: both stay
    if (replaced == unfinished)
      rename_path(path(replaced), path(free_name(step)), ExitCode::checkpoint);
    throw;
  }
  if (!replaced.empty()) try {
      remove(replaced);
    } catch (const Error& error) {
      log_warning(
          text("the checkpoint is complete, but the one it replaced is left: ", error.what()));
    }
  return name;
}

std::vector<std::string> FolderStorage::checkpoints() const {
  std::vector<std::string> names;
  for (const Item& item : list(""))
    if (step_of(item.name)) names.push_back(item.name);
  return names;
}

std::vector<std::string> FolderStorage::unfinished() const {
  std::vector<std::string> names;
  for (const Item& item : list(""))
    if (item.name.starts_with(temporary)) names.push_back(item.name);
  return names;
}

}  // namespace phalanx
