#include "phalanx/checkpoint/new_folder.h"

#include <random>

#include "phalanx/base/error.h"

namespace phalanx {

NewFolder::NewFolder(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  const bool taken = is_url(path_) ? !open_storage(path_)->list("").empty()
                                   : kind_of_path(path_, ExitCode::checkpoint) != PathKind::nothing;
  require(!taken, ExitCode::checkpoint, path_,
          " exists already; name another folder, or remove it first");
  aside_ = is_url(path_) ? path_ : text(path_, ".unfinished-", std::hex, std::random_device{}());
  storage_ = open_storage(aside_);
}

NewFolder::~NewFolder() {
  if (finished_ || !storage_) return;
  try {
    if (is_url(path_))
      for (const auto& item : storage_->list("")) storage_->remove(item.name);
    else
      remove_tree(aside_, ExitCode::checkpoint);
  } catch (const std::exception&) {  // nobody takes what is left for a whole folder
  }
}

void NewFolder::finish() {
  if (!is_url(path_)) {
    sync_folder(aside_, ExitCode::checkpoint);
    rename_path(aside_, path_, ExitCode::checkpoint);
    sync_folder(folder_of(path_), ExitCode::checkpoint);
  }
  finished_ = true;
}

}  // namespace phalanx
