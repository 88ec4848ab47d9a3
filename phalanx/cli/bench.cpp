#include "phalanx/cli/bench.h"

#include "phalanx/cli/parts.h"

extern "C" bool phalanx_check_bench(int argc, char** argv, int ranks) {
  const bool step = argc > 1 && std::string_view(argv[1]) == "step";
  return !step || phalanx::cli::check_bench_step(argc - 1, argv + 1, ranks);
}

extern "C" int phalanx_command_bench(int argc, char** argv) {
  using namespace phalanx::cli;
  constexpr Part parts[] = {
      {"comm", "collectives among ranks, beside Gloo and memcpy", bench_comm},
      {"compute", "matrix products, memory copies, AdamW: this machine's limits", bench_compute},
      {"step", "a config's training step: tokens per second, share of the limit, memory",
       bench_step},
  };
  return run_part("bench", "This machine's limits, and how close a step comes.", parts, argc, argv);
}
