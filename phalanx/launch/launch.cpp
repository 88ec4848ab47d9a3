#include "phalanx/launch/launch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

#include <cstdlib>
#include <filesystem>

#include "phalanx/base/cores.h"
#include "phalanx/base/listener.h"
#include "phalanx/base/log.h"
#include "phalanx/launch/node.h"
#include "phalanx/launch/signals.h"
#include "phalanx/launch/supervisor.h"

namespace phalanx {
namespace {

// The signals that the agent reads from a descriptor; `before` gets the mask as it was. Those that
// are ignored, as under nohup or in the background of a script, stay ignored.
Descriptor signal_descriptor(sigset_t* before) {
  signal(SIGCHLD, SIG_DFL);  // if ignored, ends of children would go unreported
  signal(SIGPIPE, SIG_IGN);
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGWINCH})
    if (!is_ignored(number)) sigaddset(&mask, number);
  sigprocmask(SIG_BLOCK, &mask, before);
  Descriptor signals(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  require(signals.open(), ExitCode::environment, "signalfd failed: ", std::strerror(errno));
  return signals;
}

// LibTorch's OpenMP runtime reads the number of threads when it is loaded, so it has to be set
// before the template loads it.
void share_cores(int ranks, int port) {
  const int cores = available_cores();
  const bool given = std::getenv("OMP_NUM_THREADS") != nullptr;
  if (!given) setenv("OMP_NUM_THREADS", std::to_string(std::max(1, cores / ranks)).c_str(), 1);
  log_info(text("starting ", ranks, ranks == 1 ? " rank" : " ranks",
                ", OMP_NUM_THREADS=", std::getenv("OMP_NUM_THREADS"), given ? " as given" : " each",
                " (", cores, cores == 1 ? " core" : " cores", "), meeting at 127.0.0.1:", port));
}

}  // namespace

int launch(LaunchOptions options) {
  const int per_rank = options.log_dir.empty() ? 4 : 5;
  require_descriptors(options.ranks * per_rank + 16, text("a launch of ", options.ranks, " ranks"));
  std::error_code error;
  if (!options.log_dir.empty()) std::filesystem::create_directories(options.log_dir, error);
  require(!error, ExitCode::environment, "cannot make --log-dir '", options.log_dir,
          "': ", error.message());
  Listener listener = listen_on(options.master_port, Reach::this_host,
                                "give another --master-port, or none to take a free one");
  if (!options.own_command) listener.socket.reset();  // the program binds it by itself

  BirthPlan plan;
  plan.ranks = options.ranks;
  plan.prepare = std::move(options.prepare);
  plan.body = std::move(options.body);
  const Descriptor signals = signal_descriptor(&plan.signal_mask);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  Sink out(STDOUT_FILENO), errors(STDERR_FILENO);
  Supervisor supervisor(options, out,
                        same_destination(STDOUT_FILENO, STDERR_FILENO) ? out : errors);
  share_cores(options.ranks, listener.port);
  for (int rank = 0; rank < options.ranks; ++rank) {
    plan.outputs.push_back(supervisor.add_stream(rank, false));
    plan.errors.push_back(supervisor.add_stream(rank, true));
    plan.environments.push_back(rank_environment(rank, options.ranks, listener.port));
  }
  plan.master = std::move(listener.socket);
  return supervisor.run(start_ranks(std::move(plan)), signals.get());
}

}  // namespace phalanx
