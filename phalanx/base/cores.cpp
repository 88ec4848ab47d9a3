#include "phalanx/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "phalanx/base/cgroup.h"

namespace phalanx {

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cores = sched_getaffinity(0, sizeof(mask), &mask) == 0
                  ? CPU_COUNT(&mask)
                  : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (const auto quota = cpu_quota())
    cores = static_cast<int>(std::min<double>(cores, std::ceil(*quota)));
  return std::max(cores, 1);
}

}  // namespace phalanx
