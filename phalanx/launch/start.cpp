#include "phalanx/launch/start.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "phalanx/base/log.h"

namespace phalanx {
namespace {

// What was ignored when the agent was started stays ignored, but for SIGTERM, with which the agent
// asks the ranks to stop; what the agent ignores for itself does not.
void rank_signals(const sigset_t& mask) {
  for (int number : {SIGTERM, SIGPIPE, SIGCHLD}) signal(number, SIG_DFL);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
}

// Closes everything from descriptor 3 on that is not in `kept`.
void close_others(std::vector<int> kept) {
  std::sort(kept.begin(), kept.end());
  unsigned first = 3;
  for (int number : kept) {
    if (number < 3) continue;
    if (static_cast<unsigned>(number) > first) close_range(first, number - 1, 0);
    first = number + 1;
  }
  close_range(first, ~0U, 0);
}

// A rank's stdin is empty, but for rank 0's where it is a file or a pipe: of a terminal several
// processes cannot read.
void set_input(int rank) {
  if (rank == 0 && !isatty(0)) return;
  const int null = open("/dev/null", O_RDONLY);
  if (null > 0) {
    dup2(null, 0);
    close(null);
  }
}

// What it throws ends here: above is the agent's stack, whose objects are not this process's.
int run_body(const std::function<int()>& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    log_error(error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {  // nothing that was checked has failed
    log_error(error.what());
    return static_cast<int>(ExitCode::environment);
  }
}

[[noreturn]] void become_rank(BirthPlan& plan, int rank, Descriptor go, pid_t agent) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, text("phalanx:", rank).c_str());
  set_input(rank);
  dup2(plan.outputs[rank].get(), 1);
  dup2(plan.errors[rank].get(), 2);
  plan.outputs.clear();
  plan.errors.clear();

  char nothing;
  while (read(go.get(), &nothing, 1) < 0 && errno == EINTR) {
  }
  go.reset();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != agent) _exit(static_cast<int>(ExitCode::peer_lost));  // died before this line

  for (const auto& name : foreign_variables()) unsetenv(name.c_str());
  for (const auto& [name, value] : plan.environments[rank]) setenv(name.c_str(), value.c_str(), 1);
  if (rank != 0)
    plan.master.reset();
  else if (plan.master.open())
    setenv("PHALANX_MASTER_FD", std::to_string(plan.master.get()).c_str(), 1);
  const int code = run_body(plan.body);
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);  // destructors of LibTorch's static objects would take 0.1 s of every rank
}

[[noreturn]] void template_process(BirthPlan& plan, Descriptor pids, Descriptor go, pid_t agent) {
  setpgid(0, 0);
  prctl(PR_SET_NAME, "phalanx loader");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != agent) _exit(static_cast<int>(ExitCode::peer_lost));
  rank_signals(plan.signal_mask);
  std::vector<int> kept{pids.get(), go.get(), plan.master.get()};
  for (const auto& list : {&plan.outputs, &plan.errors})
    for (const auto& descriptor : *list) kept.push_back(descriptor.get());
  close_others(kept);  // before loading, which may open files of its own
  bool wanted = true;
  const int code = run_body([&] {
    wanted = !plan.prepare || plan.prepare();
    require(wanted || !std::cout.flush().fail(), ExitCode::environment,
            "cannot write to stdout: disk full, or the reader has gone");
    return 0;
  });
  if (code != 0 || !wanted) _exit(code);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      pids.reset();
      become_rank(plan, rank, std::move(go), agent);
    }
    if (child > 0) setpgid(child, child);
    if (child < 0 || write(pids.get(), &child, sizeof(child)) != sizeof(child)) {
      log_error(text("cannot start rank ", rank, ": ", std::strerror(errno),
                     "; see ulimit -u for the number of processes"));
      _exit(static_cast<int>(ExitCode::environment));
    }
  }
  _exit(0);
}

}  // namespace

Birth start_ranks(BirthPlan plan) {
  std::cout.flush();
  Pipe pids = make_pipe(), go = make_pipe();
  const pid_t agent = getpid();
  Birth birth;
  birth.process = fork();
  require(birth.process >= 0, ExitCode::environment,
          "cannot start a process: ", std::strerror(errno));
  if (birth.process == 0) {
    go.write.reset();
    pids.read.reset();
    template_process(plan, std::move(pids.write), std::move(go.read), agent);
  }
  setpgid(birth.process, birth.process);
  birth.pids = std::move(pids.read);
  birth.go = std::move(go.write);
  fcntl(birth.pids.get(), F_SETFL, O_NONBLOCK);
  return birth;
}

}  // namespace phalanx
