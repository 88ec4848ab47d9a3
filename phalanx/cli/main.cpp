#include <fcntl.h>

#include <cstring>
#include <iomanip>
#include <iostream>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/base/nearest.h"
#include "phalanx/cli/dispatch.h"

extern "C" int phalanx_command_config(int argc, char** argv);

namespace phalanx::cli {

int run_command_line(int argc, char** argv);

namespace {

// In the order of `phalanx --help`. command.h says how to add one.
constexpr Command table[] = {
    {"train", "train a model; one rank unless a launcher started this process", nullptr},
    {"run", "start and supervise ranks on this machine", run_command_line},
    {"eval", "loss over the validation data", nullptr},
    {"verify", "compare a layout with one rank: loss, gradients, parameters", nullptr},
    {"generate", "continue a prompt with a trained model", nullptr},
    {"data", "make token files from text, and look into them", nullptr},
    {"ckpt", "look into checkpoints, verify them, weights to and from other forms", nullptr},
    {"config", "show and check configs; the reference of all keys", phalanx_command_config},
    {"doctor", "versions, transports, speed, limits; what is wrong and how to mend it", nullptr},
    {"bench", "this machine's limits, and how close a step comes", nullptr},
};

void print_help() {
  std::cout << "Phalanx trains neural networks across many processes, on LibTorch.\n\n"
               "usage: phalanx COMMAND [arguments]\n\ncommands:\n";
  for (const auto& command : table)
    std::cout << "  " << std::left << std::setw(10) << command.name << command.help << "\n";
  std::cout << "\nexamples:\n"
               "  phalanx train configs/tiny.toml\n"
               "  phalanx run --nproc-per-node 2 -- train configs/tiny.toml --train.steps=50\n"
               "\n`phalanx COMMAND --help` tells more. `phalanx --version` names the version.\n\n"
               "exit codes: 0 done; 1 the check that was asked for failed, or a loss is NaN;\n"
               "  2 usage or config; 3 environment; 4 a peer was lost; 5 data; 6 checkpoint;\n"
               "  75 interrupted after a save\n";
}

// `phalanx` itself, as a command.
int main_command(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--help" || first == "-h" || (first == "help" && argc == 2)) {
    print_help();
    return 0;
  }
  if (first == "--version") {
    std::cout << "phalanx " PHALANX_VERSION "\n";
    return 0;
  }
  require(!first.empty(), ExitCode::usage, "no command given; phalanx --help lists them");
  fail(ExitCode::usage, "no command '", first, "'", did_you_mean(first, command_names()),
       " (see phalanx --help)");
}

// A standard stream that the caller closed would become the number of some file that is opened
// later, which would then be written to.
void open_standard_streams() {
  for (int number : {0, 1, 2})
    if (fcntl(number, F_GETFD) < 0) open("/dev/null", O_RDWR);  // takes the lowest that is free
}

}  // namespace

std::span<const Command> commands() { return table; }

}  // namespace phalanx::cli

int main(int argc, char** argv) {
  using namespace phalanx::cli;
  open_standard_streams();
  if (argc > 2 && std::strcmp(argv[1], "help") == 0) {  // `help train` is `train --help`
    static char help[] = "--help";
    argv[1] = argv[2];
    argv[2] = help;
    argc = 3;
  }
  if (const Command* command = argc > 1 ? find_command(argv[1]) : nullptr)
    return run_command(*command, argc - 1, argv + 1);
  return run_command({"phalanx", "", main_command}, argc, argv);
}
