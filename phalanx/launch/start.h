#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "phalanx/launch/node.h"
#include "phalanx/launch/pipe.h"

namespace phalanx {

/// What the ranks get at birth.
struct BirthPlan {
  int ranks = 0;
  std::function<bool()> prepare;            ///< as LaunchOptions has it, in the template
  std::function<int()> body;                ///< in each rank; its result is the exit code
  std::vector<Descriptor> outputs, errors;  ///< each rank's stdout and stderr
  Descriptor master;                        ///< listening socket for rank 0, or none
  std::vector<Environment> environments;
  sigset_t signal_mask{};  ///< to restore
};

/// Ranks on their way: the template process loads, forks one process per rank, and leaves, by which
/// they become children of the calling process (a child subreaper). They begin when `go` is closed,
/// which the caller does after it has reaped the template.
struct Birth {
  pid_t process = -1;  ///< of the template
  Descriptor pids;     ///< one pid_t per rank, in order
  Descriptor go;
};

/// The calling process has one thread. The template ends with an exit code of ours if it fails.
Birth start_ranks(BirthPlan plan);

}  // namespace phalanx
