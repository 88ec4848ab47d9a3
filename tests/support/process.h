#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace phalanx::testing {

/// How a program ended, and what it wrote.
struct Finished {
  int code = 0;  ///< exit code, or 128 + signal; -1 if the deadline killed it
  std::string out, error;
  double seconds = 0;
};

struct ProgramOptions {
  std::vector<std::pair<std::string, std::string>> environment;  ///< beside this process's
  std::string input;                                             ///< for its stdin
  std::chrono::seconds deadline{60};
};

/// A program of its own, in a process group of its own, with its output collected. Killed with its
/// group if it still runs at the end of the object's life.
class Program {
 public:
  /// arguments[0] is a path or is looked up in PATH.
  explicit Program(std::vector<std::string> arguments, const ProgramOptions& = {});
  ~Program();
  Program(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Until its output (either stream) contains `text`; false if it ends or 30 s pass before.
  bool wait_for(const std::string& text);
  Finished finish();

 private:
  bool read_for(std::chrono::milliseconds);

  pid_t pid_ = -1;
  int out_ = -1, error_ = -1;
  ProgramOptions options_;
  Finished result_;
  std::chrono::steady_clock::time_point start_;
};

Finished run_program(std::vector<std::string> arguments, const ProgramOptions& = {});

/// `build/phalanx` with these arguments.
Finished run_phalanx(std::vector<std::string> arguments, const ProgramOptions& = {});

/// Process ids of all processes that have `marker` in their command line, this one excepted.
std::vector<pid_t> processes_with(const std::string& marker);

/// The same, once there are `count` of them or the deadline has passed.
std::vector<pid_t> await_processes(const std::string& marker, size_t count,
                                   std::chrono::milliseconds deadline = std::chrono::seconds(10));

/// A word that no other process has in its command line.
std::string unique_marker();

}  // namespace phalanx::testing
