#pragma once

#include <memory>
#include <string>

#include "phalanx/checkpoint/storage.h"

namespace phalanx {

/// A folder that appears whole or not at all: a folder of the file system is filled aside and
/// renamed at the end. An object store shows every file at once; there the last one written has to
/// be what makes it one of its kind.
class NewFolder {
 public:
  /// Error(checkpoint) if there is something at `path`, a folder or s3://...
  explicit NewFolder(const std::string& path);
  ~NewFolder();  ///< without finish(): removes what was written
  NewFolder(const NewFolder&) = delete;
  void operator=(const NewFolder&) = delete;
  Storage& storage() { return *storage_; }
  void finish();

 private:
  std::string path_, aside_;
  std::unique_ptr<Storage> storage_;
  bool finished_ = false;
};

}  // namespace phalanx
