#include "phalanx/checkpoint/lock.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/storage.h"

namespace phalanx {
namespace {

// "host node3, process 4711, since 2025-11-29 18:00:12 UTC"
std::string this_process() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 32> since{};
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::strftime(since.data(), since.size(), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &parts));
  return text("host ", host.data(), ", process ", getpid(), ", since ", since.data());
}

std::string owner(int file) {
  std::array<char, 512> told{};
  const ssize_t count = pread(file, told.data(), told.size() - 1, 0);
  return count > 0 ? std::string(told.data(), static_cast<size_t>(count)) : "owner unknown";
}

// In a folder of a group each user's file may be closed to the others.
std::string of_another_user(const std::string& path) {
  struct stat there{};
  if (stat(path.c_str(), &there) != 0) return "";
  const passwd* user = getpwuid(there.st_uid);
  return text("; the file is ", user ? user->pw_name : text("user ", there.st_uid),
              "'s: remove it when no run of theirs saves there any more, or name another folder");
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file_.open()) {
    const int error = errno;
    fail(ExitCode::checkpoint, "cannot open ", path, ": ", std::strerror(error),
         error == EACCES ? of_another_user(path) : "");
  }
  struct flock wanted{};
  wanted.l_type = F_WRLCK;
  wanted.l_whence = SEEK_SET;
  if (fcntl(file_.get(), F_OFD_SETLK, &wanted) != 0) {
    const int error = errno;
    require(error != EAGAIN && error != EACCES, ExitCode::checkpoint, "another process writes in ",
            folder, " (", owner(file_.get()), "); stop it, or name another folder");
    log_warning(text("cannot lock ", path, ": ", std::strerror(error),
                     "; a second run in this folder would not be noticed"));
    return;
  }
  // Who held it may have removed it with its empty folder (PlaceLock).
  struct stat held{}, there{};
  require(fstat(file_.get(), &held) == 0 && stat(path.c_str(), &there) == 0 &&
              held.st_ino == there.st_ino && held.st_dev == there.st_dev,
          ExitCode::checkpoint, "another process has just removed ", path, "; start again");
  const std::string told = this_process();  // for people; the lock itself is the kernel's
  if (ftruncate(file_.get(), 0) != 0 ||
      pwrite(file_.get(), told.data(), told.size(), 0) != static_cast<ssize_t>(told.size()))
    log_warning(text("cannot write ", path, ": ", std::strerror(errno)));
}

namespace {

namespace fs = std::filesystem;

// `where` and its parents, as far as they are not there.
std::vector<std::string> absent_folders(const std::string& where) {
  std::vector<std::string> absent;
  std::error_code unknown;
  if (is_url(where)) return absent;
  fs::path path = where;
  if (!path.has_filename()) path = path.parent_path();  // "place/"
  for (; !path.empty(); path = path.parent_path()) {
    if (fs::symlink_status(path, unknown).type() != fs::file_type::not_found) break;
    absent.push_back(path.string());
  }
  return absent;
}

}  // namespace

PlaceLock::PlaceLock(const std::string& where)
    : made_(absent_folders(where)), lock_(lock_place(where)) {}

// Whoever opened .lock meanwhile finds after locking it that it is not there any more.
PlaceLock::~PlaceLock() {
  std::error_code unknown;
  if (made_.empty()) return;
  for (const auto& entry : fs::directory_iterator(made_[0], unknown))
    if (entry.path().filename() != ".lock") return;
  fs::remove(made_[0] + "/.lock", unknown);
  for (const auto& folder : made_)
    if (!fs::remove(folder, unknown)) return;
}

FolderLock lock_place(const std::string& where) {
  if (is_url(where)) return {};
  make_folder(where, ExitCode::checkpoint);
  return FolderLock(where);
}

}  // namespace phalanx
