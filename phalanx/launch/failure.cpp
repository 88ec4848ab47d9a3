#include "phalanx/launch/failure.h"

#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <iomanip>
#include <sstream>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

const char* meaning(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::done:
      return "";
    case ExitCode::check_failed:
      return "a check failed, or a loss is NaN";
    case ExitCode::usage:
      return "command line or config";
    case ExitCode::environment:
      return "this machine: memory, ports, limits, missing libraries; or an unexpected error";
    case ExitCode::peer_lost:
      return "another rank was lost";
    case ExitCode::data:
      return "data: token files";
    case ExitCode::checkpoint:
      return "checkpoint files";
    case ExitCode::interrupted:
      return "stopped after a save";
  }
  return "";
}

const char* hint(int signal) {
  switch (signal) {
    case SIGKILL:
      return "; the kernel does that when memory runs out, see dmesg";
    case SIGPIPE:
      return "; the reader of its output has gone";
    default:
      return "";
  }
}

}  // namespace

std::string describe_status(int status, bool own_command) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const char* name = sigabbrev_np(signal);
    return text("killed by signal ", signal, " (", name ? text("SIG", name) : "real-time", ": ",
                sigdescr_np(signal) ? sigdescr_np(signal) : "unknown", hint(signal), ")");
  }
  const int code = WEXITSTATUS(status);
  const char* words = own_command ? meaning(code) : "";
  return *words ? text("exit code ", code, " (", words, ")") : text("exit code ", code);
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

const RankEnd& root_cause(const std::vector<RankEnd>& failures) {
  for (const auto& end : failures)
    if (exit_code_of(end.status) != static_cast<int>(ExitCode::peer_lost)) return end;
  return failures.front();
}

std::string failure_block(const RankEnd& first, int ranks, bool own_command,
                          const std::vector<std::string>& last_lines,
                          const std::vector<RankEnd>& others, const std::string& log_file) {
  const std::string rule(72, '-');
  std::ostringstream out;
  out << rule << "\nrank " << first.rank << " of " << ranks
      << " failed first: " << describe_status(first.status, own_command) << "\npid " << first.pid
      << ", " << std::fixed << std::setprecision(1) << first.seconds << " s after the start\n";
  if (last_lines.empty())
    out << "it wrote nothing to stderr\n";
  else
    out << "its last lines on stderr:\n";
  for (const auto& line : last_lines) out << "    " << line << "\n";
  constexpr size_t most_shown = 8;
  for (size_t i = 0; i < others.size() && i < most_shown; ++i)
    out << "then rank " << others[i].rank << ": " << describe_status(others[i].status, own_command)
        << "\n";
  if (others.size() > most_shown) out << "and " << others.size() - most_shown << " more\n";
  if (!log_file.empty()) out << "all it wrote: " << log_file << "\n";
  out << rule << "\n";
  return out.str();
}

}  // namespace phalanx
