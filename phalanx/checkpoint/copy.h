#pragma once

#include <cstdint>
#include <string>

#include "phalanx/checkpoint/storage.h"

namespace phalanx {

struct CopiedCheckpoint {
  std::string path;  ///< of the copy
  int64_t step = 0, files = 0, bytes = 0;
  bool was_there = false;  ///< with the same manifest and sizes; nothing was copied
};

/// Copies the checkpoint `name` of `from` ("" if `from` is itself one) into `to`, where it gets its
/// step's name. Reads everything once in pieces of a few MB, compares every hash on the way and
/// publishes the copy only if all agree. `latest` follows if no newer checkpoint is there. Another
/// checkpoint of that step there is an error, or is replaced if `replace`. Error(checkpoint); then
/// `to` is as it was.
CopiedCheckpoint copy_checkpoint(const Storage& from, const std::string& name, Storage& to,
                                 bool replace = false);

}  // namespace phalanx
