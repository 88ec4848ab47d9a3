#pragma once

#include <string>

#include "phalanx/base/descriptor.h"

namespace phalanx {

/// Keeps every other run out of a folder of checkpoints: a lock of the open file folder/.lock,
/// which the kernel drops with the process, however it ends, and which NFSv4 takes to the server.
/// Readers need none. Where the file system has no locks that is a warning.
class FolderLock {
 public:
  FolderLock() = default;
  /// Error(checkpoint) that names the owner (host, process, since) if there is one.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

}  // namespace phalanx
