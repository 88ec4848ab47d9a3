#include "phalanx/launch/signals.h"

#include <signal.h>

#include <atomic>

namespace phalanx {
namespace {

std::atomic<int> requested{0}, saves{0};
static_assert(std::atomic<int>::is_always_lock_free);  // a signal handler may touch nothing else

void on_signal(int number) {
  if (number == SIGUSR1) {
    ++saves;
    return;
  }
  int expected = 0;
  if (!requested.compare_exchange_strong(expected, number) && number == SIGINT &&
      expected == SIGINT) {
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }
}

}  // namespace

bool is_ignored(int number) {
  struct sigaction now{};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void install_signals() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (int number : {SIGTERM, SIGINT, SIGUSR1})
    if (!is_ignored(number)) sigaction(number, &action, nullptr);
}

int stop_requested() { return requested.load(std::memory_order_relaxed); }
int saves_requested() { return saves.load(std::memory_order_relaxed); }

}  // namespace phalanx
