// Collectives over shared memory beside LibTorch's Gloo, with as many ranks as cores and with more.
// comm_bench [SECONDS]. The same as `phalanx bench comm --ranks 2 8`.
#include <iostream>

#include "phalanx/base/error.h"
#include "phalanx/cli/bench.h"

int main(int argc, char** argv) {
  std::string words[] = {"comm", "--ranks", "2", "8", "--seconds", argc > 1 ? argv[1] : "1"};
  char* arguments[6];
  for (int i = 0; i < 6; ++i) arguments[i] = words[i].data();
  try {
    return phalanx::cli::bench_comm(6, arguments);
  } catch (const phalanx::Error& error) {
    std::cerr << "comm_bench: " << error.what() << "\n";
    return int(error.code());
  }
}
