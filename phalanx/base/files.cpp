#include "phalanx/base/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace phalanx {

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

namespace {

DiskHook disk_hook;

void before(std::string_view operation, const std::string& path) {
  if (disk_hook) disk_hook(operation, path);
}

std::string reason(int error) {
  if (error != EMFILE) return std::strerror(error);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return text("too many open files (limit ", limit.rlim_cur, "; raise it with ulimit -n)");
}

[[noreturn]] void fail_system(ExitCode code, int error, std::string_view doing,
                              const std::string& path) {
  throw SystemError(code, error, text("cannot ", doing, " ", path, ": ", reason(error)));
}

std::string free_space(const std::string& path) {
  const auto free = free_bytes(folder_of(path));
  return free ? text(*free) : "unknown";
}

// Opens a regular file. Nothing waits for the other end of a pipe, and a device is not read as an
// empty file.
int open_regular(const std::string& path, ExitCode code, int64_t& size) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_system(code, errno, "open", path);
  struct stat status{};
  const int error = fstat(descriptor, &status) != 0 ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  const bool regular = error == 0 && S_ISREG(status.st_mode);
  if (!regular) close(descriptor);
  if (error != 0) fail_system(code, error, "read", path);
  require(regular, code, "cannot read ", path, ": it is a pipe or a device; name a file");
  size = status.st_size;
  return descriptor;
}

}  // namespace

PathKind kind_of_path(const std::string& path, ExitCode code) {
  using Type = std::filesystem::file_type;
  std::error_code error;
  const Type type = std::filesystem::status(path, error).type();
  if (type == Type::not_found) return PathKind::nothing;
  require(!error, code, "cannot look at ", path, ": ", error.message());
  if (type == Type::regular) return PathKind::file;
  return type == Type::directory ? PathKind::folder : PathKind::other;
}

void set_disk_hook(DiskHook hook) { disk_hook = std::move(hook); }

OutputFile::OutputFile(std::string path, ExitCode code) : path_(std::move(path)), code_(code) {
  before("create", path_);
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_system(code_, errno, "create", path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::put(const void* data, int64_t bytes, int64_t offset) {
  before("write", path_);
  const char* from = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = pwrite(descriptor_, from + done, bytes - done, offset + done);
    if (count > 0) {
      done += count;
    } else if (count == 0 || errno != EINTR) {
      const int error = count == 0 ? ENOSPC : errno;
      const bool full = error == ENOSPC || error == EDQUOT;
      const std::string space =
          full ? text(" (", bytes - done, " more bytes wanted, ", free_space(path_), " free)") : "";
      throw SystemError(code_, error, text("cannot write ", path_, ": ", reason(error), space));
    }
  }
}

void OutputFile::write(const void* data, int64_t bytes) {
  put(data, bytes, bytes_);
  bytes_ += bytes;
  constexpr int64_t stretch = 8 << 20;
  if (bytes_ - flushing_ < stretch) return;
  // The disk starts now and not at finish(), which looks at errors.
  sync_file_range(descriptor_, flushing_, bytes_ - flushing_, SYNC_FILE_RANGE_WRITE);
  flushing_ = bytes_;
}

void OutputFile::write_at(const void* data, int64_t bytes, int64_t offset) {
  put(data, bytes, offset);
  bytes_ = std::max(bytes_, offset + bytes);
}

void OutputFile::finish() {
  before("sync", path_);
  if (fsync(descriptor_) != 0) fail_system(code_, errno, "flush", path_);
  if (close(std::exchange(descriptor_, -1)) != 0) fail_system(code_, errno, "close", path_);
}

InputFile::InputFile(std::string path, ExitCode code) : path_(std::move(path)), code_(code) {
  descriptor_ = open_regular(path_, code_, size_);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void InputFile::read(void* out, int64_t bytes, int64_t offset) const {
  char* to = static_cast<char*>(out);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t count = pread(descriptor_, to + done, bytes - done, offset + done);
    if (count > 0) {
      done += count;
    } else if (count == 0) {
      fail(code_, path_, " ends at byte ", offset + done, ", ", offset + bytes,
           " are needed: the file was cut");
    } else if (errno != EINTR) {
      fail_system(code_, errno, "read", path_);
    }
  }
}

MappedFile::MappedFile(const std::string& path, ExitCode code) {
  int64_t size = 0;
  const int descriptor = open_regular(path, code, size);
  int error = 0;
  if (size > 0) {
    void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) error = errno;
    if (error == 0) data_ = static_cast<uint8_t*>(address), size_ = size;
  }
  close(descriptor);  // the mapping stays
  if (error != 0) fail_system(code, error, "map", path);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<uint8_t*>(data_), size_);
}

std::optional<int64_t> free_bytes(const std::string& path) {
  struct statvfs status{};
  if (statvfs(path.c_str(), &status) != 0) return std::nullopt;
  return static_cast<int64_t>(status.f_bavail * status.f_frsize);
}

void drop_cached_pages(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return;
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
}

std::string read_file(const std::string& path, ExitCode code) {
  const InputFile file(path, code);
  std::string contents(file.size(), '\0');
  file.read(contents.data(), file.size(), 0);
  return contents;
}

void replace_file(const std::string& path, std::string_view contents, ExitCode code) {
  const std::string aside = path + ".tmp";
  OutputFile file(aside, code);
  file.write(contents.data(), static_cast<int64_t>(contents.size()));
  file.finish();
  rename_path(aside, path, code);
  sync_folder(folder_of(path), code);
}

void make_folder(const std::string& path, ExitCode code, bool lasting) {
  before("mkdir", path);
  std::error_code error, ignored;
  std::vector<std::string> missing;  // the innermost first
  for (std::string at = path; lasting && !std::filesystem::exists(at, ignored);
       at = folder_of(at)) {
    missing.push_back(at);
    if (at == folder_of(at)) break;
  }
  std::filesystem::create_directories(path, error);
  // Some network file systems say "exists" about a folder that they did not show a moment ago.
  if (error && !std::filesystem::is_directory(path, ignored))
    fail(code, "cannot make the folder ", path, ": ", error.message());
  for (; !missing.empty(); missing.pop_back()) try {
      sync_folder(folder_of(missing.back()), code);
    } catch (const SystemError& failure) {
      if (failure.number() != EACCES) throw;  // one that may be written and not read
    }
}

void rename_path(const std::string& from, const std::string& to, ExitCode code) {
  before("rename", to);
  if (rename(from.c_str(), to.c_str()) != 0)
    throw SystemError(code, errno, text("cannot rename ", from, " to ", to, ": ", reason(errno)));
}

void exchange_paths(const std::string& first, const std::string& second, ExitCode code) {
  before("exchange", second);
  if (renameat2(AT_FDCWD, first.c_str(), AT_FDCWD, second.c_str(), RENAME_EXCHANGE) != 0)
    throw SystemError(code, errno,
                      text("cannot exchange ", first, " and ", second, ": ", reason(errno)));
}

void sync_folder(const std::string& path, ExitCode code) {
  before("sync", path);
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_system(code, errno, "open", path);
  const int error = fsync(descriptor) != 0 ? errno : 0;
  close(descriptor);
  if (error != 0 && error != EINVAL) fail_system(code, error, "flush", path);
}

void remove_tree(const std::string& path, ExitCode code) {
  before("remove", path);
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail(code, "cannot remove ", path, ": ", error.message());
}

}  // namespace phalanx
