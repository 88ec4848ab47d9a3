#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "phalanx/base/error.h"

namespace phalanx {

// Files that survive a crash: write aside, flush, rename. Every failure is an Error with the path,
// what was tried, the system's reason and, on a full disk, the bytes wanted and free.

/// What the operating system refused, with its number (EIO, ENOSPC ...).
class SystemError : public Error {
 public:
  SystemError(ExitCode code, int number, const std::string& sentence)
      : Error(code, sentence), number_(number) {}
  int number() const { return number_; }

 private:
  int number_;
};

/// Runs before each operation that changes the disk ("create", "write", "sync", "rename",
/// "exchange", "remove", "mkdir"); may throw or end the process. For tests of faults.
using DiskHook = std::function<void(std::string_view operation, const std::string& path)>;
void set_disk_hook(DiskHook hook);

/// The folder that holds `path`; "." for a name alone.
std::string folder_of(const std::string& path);

/// What lies at a path, links followed.
enum class PathKind : uint8_t { nothing, file, folder, other };
/// Error(code) if the system does not tell: no permission in a folder on the way, a name too long.
PathKind kind_of_path(const std::string& path, ExitCode code);

/// A file, or an object of a store, that is read at offsets.
class Reader {
 public:
  Reader() = default;
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  void operator=(const Reader&) = delete;
  virtual int64_t size() const = 0;
  virtual const std::string& path() const = 0;
  /// Exactly `bytes`, or an error.
  virtual void read(void* out, int64_t bytes, int64_t offset) const = 0;
};

/// A new file, or object of a store, written from start to end.
class Writer {
 public:
  Writer() = default;
  virtual ~Writer() = default;  ///< without finish(): what was written is of no use
  Writer(const Writer&) = delete;
  void operator=(const Writer&) = delete;
  virtual void write(const void* data, int64_t bytes) = 0;
  virtual int64_t bytes() const = 0;  ///< written so far
  virtual void finish() = 0;          ///< what was written survives a crash from here on
};

/// A new file. `code` is that of the errors.
class OutputFile : public Writer {
 public:
  OutputFile(std::string path, ExitCode code);
  ~OutputFile() override;
  void write(const void* data, int64_t bytes) override;
  void write_at(const void* data, int64_t bytes, int64_t offset);
  int64_t bytes() const override { return bytes_; }
  void finish() override;  ///< flushes and closes; the folder's entry is the caller's

 private:
  void put(const void* data, int64_t bytes, int64_t offset);
  std::string path_;
  ExitCode code_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  int64_t flushing_ = 0;  // bytes from the start that the disk was told to take
};

/// A file opened for reads at offsets.
class InputFile final : public Reader {
 public:
  InputFile(std::string path, ExitCode code);
  ~InputFile() override;
  int64_t size() const override { return size_; }
  const std::string& path() const override { return path_; }
  void read(void* out, int64_t bytes, int64_t offset) const override;

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

/// Bytes that this user can still write in the file system of `path`; nothing if it does not say.
std::optional<int64_t> free_bytes(const std::string& path);
/// Takes what was flushed of a file out of the page cache, so that it is read from the disk. Where
/// the system does not do that nothing happens.
void drop_cached_pages(const std::string& path);

std::string read_file(const std::string& path, ExitCode code);
/// Writes `path` + ".tmp", flushes it, renames it over `path` and flushes the folder.
void replace_file(const std::string& path, std::string_view contents, ExitCode code);
/// Makes it and its parents; may exist already. `lasting`: flushes the folders that hold them.
void make_folder(const std::string& path, ExitCode code, bool lasting = true);
void rename_path(const std::string& from, const std::string& to, ExitCode code);
/// Both exist. SystemError where the file system cannot do it (NFS).
void exchange_paths(const std::string& first, const std::string& second, ExitCode code);
void sync_folder(const std::string& path, ExitCode code);
void remove_tree(const std::string& path, ExitCode code);

}  // namespace phalanx
