#pragma once

#include <sys/types.h>

#include "phalanx/launch/pipe.h"

namespace phalanx {

/// A small process that outlives a killed agent by a moment: when the agent goes without a word, it
/// kills the process groups that it was told of. (The kernel's parent-death signal reaches only the
/// ranks themselves, not the programs that they started.)
class Guard {
 public:
  Guard();
  ~Guard();  ///< all groups have ended: nothing to kill
  void watch(pid_t group);
  void forget(pid_t group);  ///< it has ended; its number may become another's
  pid_t process() const { return process_; }

 private:
  void tell(pid_t word);

  pid_t process_ = -1;
  Descriptor channel_;
};

}  // namespace phalanx
