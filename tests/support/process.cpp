#include "tests/support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "phalanx/base/error.h"

namespace phalanx::testing {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// A file without a name that holds the input: nobody has to write it while the program runs.
int input_file(const std::string& input) {
  if (input.empty()) return open("/dev/null", O_RDONLY);
  const std::string folder = std::filesystem::temp_directory_path();
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR, 0600);
  require(file >= 0 && write(file, input.data(), input.size()) == ssize_t(input.size()),
          ExitCode::environment, "cannot write a file in ", folder);
  lseek(file, 0, SEEK_SET);
  return file;
}

}  // namespace

Program::Program(std::vector<std::string> arguments, const ProgramOptions& options)
    : options_(options), start_(Clock::now()) {
  int out[2], error[2];
  require(pipe2(out, O_CLOEXEC) == 0 && pipe2(error, O_CLOEXEC) == 0, ExitCode::environment,
          "no pipe");
  std::vector<char*> words;
  for (auto& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const int input = input_file(options.input);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    // What the tests' own launcher ignores (nohup, a script's background) the program would, too.
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) ::signal(number, SIG_DFL);
    dup2(input, 0), dup2(out[1], 1), dup2(error[1], 2);
    close_range(3, ~0U, 0);
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    execvp(words[0], words.data());
    _exit(127);
  }
  setpgid(pid_, pid_);
  close(input), close(out[1]), close(error[1]);
  out_ = out[0], error_ = error[0];
}

Program::~Program() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int descriptor : {out_, error_})
    if (descriptor >= 0) close(descriptor);
}

void Program::signal(int number) const { kill(pid_, number); }

// False once both streams have ended.
bool Program::read_for(std::chrono::milliseconds time) {
  pollfd polled[2] = {{out_, POLLIN, 0}, {error_, POLLIN, 0}};
  if (poll(polled, 2, static_cast<int>(time.count())) > 0)
    for (int i = 0; i < 2; ++i) {
      if (!polled[i].revents) continue;
      char buffer[4096];
      int& descriptor = i == 0 ? out_ : error_;
      const ssize_t got = read(descriptor, buffer, sizeof(buffer));
      if (got > 0) (i == 0 ? result_.out : result_.error).append(buffer, got);
      if (got == 0) close(descriptor), descriptor = -1;
    }
  return out_ >= 0 || error_ >= 0;
}

bool Program::wait_for(const std::string& text) {
  const auto end = Clock::now() + 30s;
  bool more = true;
  while (result_.out.find(text) == std::string::npos &&
         result_.error.find(text) == std::string::npos) {
    if (!more || Clock::now() > end) return false;
    more = read_for(20ms);
  }
  return true;
}

Finished Program::finish() {
  const auto end = start_ + options_.deadline;
  while (read_for(20ms) && Clock::now() < end) {
  }
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0 && Clock::now() < end)
    std::this_thread::sleep_for(1ms);
  const bool late = kill(pid_, 0) == 0;  // not yet reaped
  if (late) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  result_.code = late ? -1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return result_;
}

Finished run_program(std::vector<std::string> arguments, const ProgramOptions& options) {
  return Program(std::move(arguments), options).finish();
}

Finished run_phalanx(std::vector<std::string> arguments, const ProgramOptions& options) {
  arguments.insert(arguments.begin(), PHALANX_BINARY);
  return run_program(std::move(arguments), options);
}

std::vector<pid_t> processes_with(const std::string& marker) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string words{std::istreambuf_iterator<char>(file), {}};
    if (words.find(marker) != std::string::npos) found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> await_processes(const std::string& marker, size_t count,
                                   std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  auto found = processes_with(marker);
  while (found.size() != count && Clock::now() < end) {
    std::this_thread::sleep_for(5ms);
    found = processes_with(marker);
  }
  return found;
}

std::string unique_marker() {
  std::random_device random;
  return text("marker-", getpid(), "-", random());
}

}  // namespace phalanx::testing
