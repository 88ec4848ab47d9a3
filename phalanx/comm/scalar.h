#pragma once

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// The sum, maximum ... of one number of each rank; the same on all of them. Collective.
double all_reduce(Communicator& group, double value, Op op, const Call& call);

}  // namespace phalanx
