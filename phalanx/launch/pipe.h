#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "phalanx/base/descriptor.h"
#include "phalanx/base/error.h"

namespace phalanx {

struct Pipe {
  Descriptor read, write;
};

/// Both ends are closed on exec.
inline Pipe make_pipe() {
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, ExitCode::environment,
          "cannot make a pipe: ", std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

}  // namespace phalanx
