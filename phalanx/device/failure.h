#pragma once

#include <functional>
#include <string>

#include "phalanx/base/error.h"

namespace phalanx {

/// What LibTorch says before it shows where.
std::string first_line(const std::string& message);

/// Why memory ran out, without LibTorch's backtrace, if that is the exception that is being handled
/// (call it in a catch block); else empty.
std::string out_of_memory_reason();

/// The exception that is being handled, as an Error: ours as it is; memory that ran out, and what
/// nobody expected, as Error(environment), since it says nothing about what was to be checked.
Error current_failure();

/// Runs `make`, which allocates `what` ("unit blocks.3 (...)") for training. Where this machine has
/// no room for it the Error(environment) names it.
void allocate_named(const std::string& what, const std::function<void()>& make);

}  // namespace phalanx
