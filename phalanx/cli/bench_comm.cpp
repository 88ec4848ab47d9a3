#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iomanip>
#include <nlohmann/json.hpp>

#include "phalanx/cli/bench.h"
#include "phalanx/cli/command.h"
#include "phalanx/cli/guard.h"
#include "phalanx/launch/launch.h"
#include "phalanx/report/comm_rates.h"

namespace phalanx::cli {
namespace {

struct Settings {
  std::vector<int> ranks;
  double seconds = 1;
  bool json = false, gloo = true;
};

constexpr int kLatencyCalls = 10000;
constexpr int64_t kLatencyBytes = 1024;

std::string size_text(int64_t bytes) {
  return bytes >= 1 << 20 ? text(bytes >> 20, " MB") : text(bytes >> 10, " KB");
}

void print_latency(int ranks, const std::vector<double>& sorted, bool json) {
  const auto at = [&](double share) { return 1e6 * sorted[size_t(share * double(sorted.size()))]; };
  if (json) {
    std::cout << nlohmann::json{{"what", "all_reduce latency"}, {"ranks", ranks},
                                {"bytes", kLatencyBytes},       {"calls", kLatencyCalls},
                                {"median_us", at(0.5)},         {"p99_us", at(0.99)}}
              << std::endl;
    return;
  }
  std::cout << std::fixed << std::setprecision(2) << "\n"
            << ranks << " ranks: all_reduce of " << size_text(kLatencyBytes) << ", "
            << kLatencyCalls << " calls: median " << at(0.5) << " us, 99 % " << at(0.99) << " us\n";
}

void print_rate(int ranks, const CommRate& rate, bool json) {
  const bool large = rate.bytes >= 1 << 20;
  const double share = rate.copy_median / rate.median;
  if (json) {
    nlohmann::json line{{"what", rate.operation},
                        {"ranks", ranks},
                        {"bytes", rate.bytes},
                        {"implementation", rate.implementation},
                        {"median_us", 1e6 * rate.median},
                        {"best_us", 1e6 * rate.best}};
    if (large) line["share_of_memcpy"] = share;
    std::cout << line << std::endl;
    return;
  }
  std::cout << std::left << std::setw(16) << rate.operation << std::right << std::setw(7)
            << size_text(rate.bytes) << "  " << std::left << std::setw(18) << rate.implementation
            << std::right << std::fixed << std::setprecision(1) << std::setw(12)
            << 1e6 * rate.median << std::setw(12) << 1e6 * rate.best;
  if (large) std::cout << std::setw(9) << std::setprecision(0) << 100 * share << " %";
  std::cout << "\n";
}

int measure_in_world(const Settings& settings) {
  at::set_num_threads(1);
  auto world = World::join(world_from_environment());
  const int ranks = world->info().size;
  require(ranks > 1, ExitCode::usage, "bench comm needs two ranks or more; give --ranks 2");
  const auto latencies = all_reduce_latencies(*world, kLatencyBytes, kLatencyCalls);
  if (world->info().rank == 0) print_latency(ranks, latencies, settings.json);
  const auto rates =
      measure_collectives(*world, {.seconds = settings.seconds, .gloo = settings.gloo});
  if (world->info().rank != 0) return 0;
  if (!settings.json)
    std::cout << std::left << std::setw(16) << "operation" << std::right << std::setw(7) << "whole"
              << "  " << std::left << std::setw(18) << "by" << std::right << std::setw(12)
              << "median us" << std::setw(12) << "best us" << std::setw(11) << "of memcpy" << "\n";
  for (const auto& rate : rates) print_rate(ranks, rate, settings.json);
  std::cout << std::flush;
  return 0;
}

// Each number of ranks in a process of its own: launch() serves once.
int measure_ranks(int ranks, const Settings& settings) {
  std::cout << std::flush;
  const pid_t parent = getpid(), child = fork();
  require(child >= 0, ExitCode::environment,
          "cannot fork: raise the limit on processes (ulimit -u)");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // whatever ends this command ends the ranks
    if (getppid() != parent) _exit(int(ExitCode::peer_lost));
    int code = int(ExitCode::environment);
    try {
      code = launch({.ranks = ranks, .own_command = true, .body = [&] {
                       return guarded([&] { return measure_in_world(settings); });
                     }});
    } catch (const Error& error) {
      std::cerr << "error: " << error.what() << "\n";
      code = int(error.code());
    }
    std::cout << std::flush;
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int bench_comm(int argc, char** argv) {
  CommandLine app(
      "Collectives among ranks of this machine beside LibTorch's Gloo, and their share of what "
      "memcpy reaches when all ranks copy as many bytes. Under a launcher: among its ranks.",
      "phalanx bench comm");
  Settings settings;
  settings.ranks = {2};
  bool no_gloo = false;
  app.add_option("--ranks", settings.ranks, "numbers of ranks, one table each")
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "of each measurement")->capture_default_str();
  app.add_flag("--no-gloo", no_gloo, "leave Gloo out");
  app.add_flag("--json", settings.json, "one JSON object per measurement");
  if (!app.read(argc, argv)) return 0;
  settings.gloo = !no_gloo;
  require(settings.seconds > 0, ExitCode::usage, "--seconds ", settings.seconds,
          ": give a positive time");
  for (int ranks : settings.ranks)
    require(ranks >= 2 && ranks <= 256, ExitCode::usage, "--ranks ", ranks, ": give 2 to 256");
  if (world_from_environment().size > 1) return measure_in_world(settings);
  for (int ranks : settings.ranks)
    if (const int code = measure_ranks(ranks, settings)) return code;
  return 0;
}

}  // namespace phalanx::cli
