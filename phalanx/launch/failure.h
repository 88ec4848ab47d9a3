#pragma once

#include <string>
#include <vector>

namespace phalanx {

/// How a rank ended.
struct RankEnd {
  int rank = 0;
  int pid = 0;
  int status = 0;      ///< as waitpid() gives it
  double seconds = 0;  ///< since the start
};

/// "exit code 5 (data: token files)", "signal 11 (SIGSEGV, ...)". The meanings of exit codes are
/// those of base/error.h, so they are given for our own commands only.
std::string describe_status(int status, bool own_command);

/// The shell's convention: the exit code, or 128 + the signal.
int exit_code_of(int status);

/// Of ranks that failed at about the same time, in the order of their ends: the first that did not
/// merely lose a peer; the first of all if all did. `failures` is not empty.
const RankEnd& root_cause(const std::vector<RankEnd>& failures);

/// The last block on the terminal.
std::string failure_block(const RankEnd& first, int ranks, bool own_command,
                          const std::vector<std::string>& last_lines,
                          const std::vector<RankEnd>& others, const std::string& log_file);

}  // namespace phalanx
