#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace phalanx {

constexpr int most_ranks = 1024;  ///< that one machine is to start

struct LaunchOptions {
  int ranks = 1;
  int master_port = 0;  ///< 0: a free one
  std::string log_dir;  ///< empty: no files; else each rank's output goes also to DIR/rank-N.log
  bool own_command = false;  ///< exit codes are ours, and rank 0 is handed the listening socket
  std::chrono::seconds grace{30};  ///< from the first SIGINT or SIGTERM to SIGKILL: time to save
  /// Run once in a process of one thread, which then forks the ranks; an Error, or false (nothing
  /// is to be run), before any rank starts.
  std::function<bool()> prepare;
  /// Run in each rank: its result is the exit code. What it throws is said in one sentence there.
  std::function<int()> body;
};

/// Starts the ranks on this machine with torchrun's environment, supervises them, and returns the
/// run's exit code: 0 if all ended well; that of the rank that failed first, or 128 + its signal;
/// 75 if the ranks stopped after a save; 128 + signal if the run was stopped by it. When it returns
/// none of the ranks and nothing that they started is running. Throws Error(environment) if it
/// could not start. To be called by a process of one thread, once.
int launch(LaunchOptions options);

}  // namespace phalanx
