#include "phalanx/checkpoint/space.h"

#include <filesystem>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/base/log.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/verify.h"

namespace phalanx {

void require_space(const Storage& storage, int64_t wanted, const std::string& what) {
  const auto free = free_bytes(storage.path(""));
  require(!free || *free >= wanted, ExitCode::checkpoint, "cannot save ", what, " in ",
          storage.path(""), ": ", wanted, " bytes wanted, ", free.value_or(0),
          " free; remove old checkpoints there, or free some space");
}

void make_space(Storage& storage, int64_t wanted, int keep, int64_t keep_every,
                const std::string& spared) {
  const auto free = free_bytes(storage.path(""));
  if (keep == 0 || !free || *free >= wanted) return;
  int64_t expected = *free;
  auto old = old_checkpoints(storage, keep, keep_every);
  const auto is_spared = [&](const std::string& name) {
    std::error_code absent;
    return std::filesystem::equivalent(storage.path(name), spared, absent);
  };
  const bool spares = std::erase_if(old, is_spared) > 0;
  for (const auto& name : old)
    for (const auto& [file, bytes] : read_manifest(storage, name).files) expected += bytes;
  if (expected == *free || expected < wanted) return;
  const std::string newest = candidates(storage)[0].name;
  const std::string damaged = content_defect(storage, newest, read_manifest(storage, newest));
  if (!damaged.empty())
    return log_warning(text("no old checkpoint is deleted to make space: ", damaged));
  log_warning(text(storage.path(""), " has ", *free, " bytes free, and ", wanted,
                   " are wanted: all but the newest ", keep,
                   " checkpoints are deleted now (checkpoint.keep)",
                   spares ? ", but not " + spared : ""));
  for (const auto& name : old) try {
      storage.remove(name);
    } catch (const Error& error) {  // the others may be enough
      log_warning(text("an old checkpoint was not deleted: ", error.what()));
    }
}

}  // namespace phalanx
