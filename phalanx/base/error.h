#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "phalanx/base/text.h"

namespace phalanx {

/// How a process of ours ends; scripts rely on the numbers, do not renumber.
enum class ExitCode : int {
  done = 0,
  check_failed = 1,  ///< the check that was asked for failed (verify, ckpt verify, diff), or what
                     ///< a model computes is no number (a loss, the next token's logits)
  usage = 2,         ///< command line or config
  environment = 3,   ///< this machine: memory, ports, limits, missing libraries
  peer_lost = 4,     ///< another rank died, hung or disagreed
  data = 5,          ///< token files
  checkpoint = 6,    ///< checkpoint files
  interrupted = 75,  ///< stopped after a save: please requeue
};

/// The one exception type of the library: a sentence with the thing, the value and what to do.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Throws Error(code) with the parts written one after another.
template <class... Parts>
[[noreturn]] void fail(ExitCode code, const Parts&... parts) {
  throw Error(code, text(parts...));
}

/// Throws unless `condition` holds. The parts are only formatted on failure.
template <class... Parts>
void require(bool condition, ExitCode code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, parts...);
}

}  // namespace phalanx
