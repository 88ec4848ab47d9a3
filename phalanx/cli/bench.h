#pragma once

namespace phalanx::cli {

// The parts of `phalanx bench`, each a command of its own: argv[0] is the part's name. A new one is
// a file bench_NAME.cpp, a line here and a line in the table of bench.cpp.
int bench_comm(int argc, char** argv);
int bench_compute(int argc, char** argv);
int bench_step(int argc, char** argv);

/// As phalanx_check_NAME of command.h.
bool check_bench_step(int argc, char** argv, int ranks);

}  // namespace phalanx::cli
