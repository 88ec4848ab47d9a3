#include "phalanx/launch/guard.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>

namespace phalanx {
namespace {

constexpr pid_t all_ended = -1;  // no group's number: that is the first process of the system
constexpr int most_groups = 4096;

[[noreturn]] void guard_loop(int channel) {
  setpgid(0, 0);  // Ctrl-C on the terminal is not for this process
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) signal(number, SIG_IGN);
  prctl(PR_SET_NAME, "phalanx guard");
  // Hold nothing of the agent's open but the channel, as descriptor 0.
  dup2(channel, 0);
  close_range(1, ~0U, 0);
  static pid_t groups[most_groups];
  int count = 0;
  for (pid_t group;;) {
    const ssize_t got = read(0, &group, sizeof(group));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(group)) break;
    if (group == all_ended) _exit(0);
    if (group < 0)
      count = static_cast<int>(std::remove(groups, groups + count, -group) - groups);
    else if (count < most_groups)
      groups[count++] = group;
  }
  for (int i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  Pipe pipe = make_pipe();
  process_ = fork();
  require(process_ >= 0, ExitCode::environment, "cannot start a process: ", std::strerror(errno));
  if (process_ == 0) guard_loop(pipe.read.get());
  channel_ = std::move(pipe.write);
}

Guard::~Guard() {
  tell(all_ended);
  channel_.reset();
  waitpid(process_, nullptr, 0);
}

void Guard::watch(pid_t group) { tell(group); }
void Guard::forget(pid_t group) { tell(-group); }

void Guard::tell(pid_t word) {
  // Fails only if the guard itself was killed: then the parent-death signal is what is left.
  [[maybe_unused]] const ssize_t written = write(channel_.get(), &word, sizeof(word));
}

}  // namespace phalanx
