#include "phalanx/cli/bench.h"

#include <iomanip>

#include "phalanx/cli/command.h"

namespace {

struct Part {
  const char* name;
  const char* help;
  phalanx::cli::CommandFunction function;
};

constexpr Part parts[] = {
    {"comm", "collectives among ranks, beside Gloo and memcpy", phalanx::cli::bench_comm},
    {"compute", "matrix products, memory copies, AdamW: this machine's limits",
     phalanx::cli::bench_compute},
    {"step", "a config's training step: tokens per second, share of the limit, memory",
     phalanx::cli::bench_step},
};

}  // namespace

extern "C" int phalanx_command_bench(int argc, char** argv) {
  using namespace phalanx;
  const std::string first = argc > 1 ? argv[1] : "";
  for (const Part& part : parts)
    if (first == part.name) return part.function(argc - 1, argv + 1);
  if (first == "--help" || first == "-h") {
    std::cout << "This machine's limits, and how close a step comes.\n\n"
                 "usage: phalanx bench PART [arguments]\n\nparts:\n";
    for (const Part& part : parts)
      std::cout << "  " << std::left << std::setw(10) << part.name << part.help << "\n";
    return 0;
  }
  std::vector<std::string> names;
  for (const Part& part : parts) names.push_back(part.name);
  fail(ExitCode::usage, first.empty() ? "no part of bench given" : "no part of bench '", first,
       first.empty() ? "" : "'", did_you_mean(first, names), " (see phalanx bench --help)");
}
