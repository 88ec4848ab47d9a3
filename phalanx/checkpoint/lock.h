#pragma once

#include <string>
#include <vector>

#include "phalanx/base/descriptor.h"

namespace phalanx {

/// Keeps everyone else who writes out of a folder of checkpoints: a lock of the open file
/// folder/.lock, which the kernel drops with the process, however it ends, and which NFSv4 takes to
/// the server. Readers need none. Where the file system has no locks that is a warning.
class FolderLock {
 public:
  FolderLock() = default;
  /// Error(checkpoint) that names the owner (host, process, since) if there is one.
  explicit FolderLock(const std::string& folder);

 private:
  Descriptor file_;
};

/// Locks a place of checkpoints, and makes the folder if it is not there. An object store has no
/// locks: there it is of nothing.
FolderLock lock_place(const std::string& where);

/// lock_place() for one write: folders that it made go again if nothing was written there.
class PlaceLock {
 public:
  explicit PlaceLock(const std::string& where);
  ~PlaceLock();
  PlaceLock(const PlaceLock&) = delete;
  void operator=(const PlaceLock&) = delete;

 private:
  std::vector<std::string> made_;  // the innermost first
  FolderLock lock_;
};

}  // namespace phalanx
