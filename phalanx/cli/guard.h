#pragma once

#include <functional>

namespace phalanx::cli {

/// Runs the body of a command that needs LibTorch: what that throws becomes phalanx::Error, and a
/// rank that lost a peer says what it did last.
int guarded(const std::function<int()>& body);

}  // namespace phalanx::cli
