#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::cli {

using CommandFunction = int (*)(int argc, char** argv);

struct Command {
  const char* name;
  const char* help;          ///< one line for `phalanx --help`
  CommandFunction function;  ///< null: in libphalanx_torch.so
};

/// The table of main.cpp.
std::span<const Command> commands();
const Command* find_command(std::string_view name);
std::vector<std::string> command_names();

/// For a command that `ranks` ranks are about to run: opens libphalanx_torch.so (if the command is
/// in it), which lies beside this program, and checks the arguments where the command can do that
/// (command.h). False if they only ask for help, which is printed.
bool prepare_command(const Command& command, int argc, char** argv, int ranks);

/// Runs the command and turns what it throws into one sentence on stderr and an exit code.
int run_command(const Command& command, int argc, char** argv) noexcept;

}  // namespace phalanx::cli
