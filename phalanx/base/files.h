#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "phalanx/base/error.h"

namespace phalanx {

// Files that survive a crash: write aside, flush, rename. Every failure is an Error with the path,
// what was tried, the system's reason and, on a full disk, the bytes wanted and free.

/// Runs before each operation that changes the disk ("create", "write", "sync", "rename", "remove",
/// "mkdir"); may throw or end the process. For tests of faults.
using DiskHook = std::function<void(std::string_view operation, const std::string& path)>;
void set_disk_hook(DiskHook hook);

/// A new file, written from start to end. `code` is that of the errors.
class OutputFile {
 public:
  OutputFile(std::string path, ExitCode code);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  void operator=(const OutputFile&) = delete;
  void write(const void* data, int64_t bytes);
  void write_at(const void* data, int64_t bytes, int64_t offset);
  int64_t bytes() const { return bytes_; }
  void sync_and_close();

 private:
  void put(const void* data, int64_t bytes, int64_t offset);
  std::string path_;
  ExitCode code_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

/// A file opened for reads at offsets.
class InputFile {
 public:
  InputFile(std::string path, ExitCode code);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  void operator=(const InputFile&) = delete;
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// Exactly `bytes`, or an error.
  void read(void* out, int64_t bytes, int64_t offset) const;

 private:
  std::string path_;
  ExitCode code_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

/// A whole file mapped for reading. Movable.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(const std::string& path, ExitCode code);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

std::string read_file(const std::string& path, ExitCode code);
/// Writes `path` + ".tmp", flushes it, renames it over `path` and flushes the folder.
void replace_file(const std::string& path, std::string_view contents, ExitCode code);
void make_folder(const std::string& path, ExitCode code);  ///< and its parents; may exist already
void rename_path(const std::string& from, const std::string& to, ExitCode code);
void sync_folder(const std::string& path, ExitCode code);
void remove_tree(const std::string& path, ExitCode code);

}  // namespace phalanx
