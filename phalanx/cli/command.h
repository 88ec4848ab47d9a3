#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "phalanx/base/error.h"

/// How to add a command.
///
/// 1. phalanx/cli/NAME.cpp with one function; argv[0] is the command's name:
///
///      extern "C" int phalanx_command_NAME(int argc, char** argv) {
///        phalanx::cli::CommandLine app("What it does, in one sentence.", "phalanx NAME");
///        std::string config;
///        app.add_option("config", config, "the run's TOML file")->required();
///        if (!app.read(argc, argv)) return 0;  // --help was asked for
///        ...
///        return 0;  // or another of base/error.h's exit codes
///      }
///
/// 2. One line in the table of main.cpp. A command there with `nullptr` for its function needs
///    LibTorch: its file becomes a part of libphalanx_torch.so, which is opened when the command
///    runs, and the function is found by its name. A command without LibTorch is named in
///    `plain_commands` of CMakeLists.txt and has its function in the table.
///
/// 3. A command that ranks run together may have a second function in its file, which `phalanx run`
///    calls once before it starts them, so that what is wrong with the arguments or the config is
///    said once. It throws, or returns false if only --help was asked for:
///
///      extern "C" bool phalanx_check_NAME(int argc, char** argv, int ranks)
///
/// Errors are thrown: phalanx::Error ends the process with its sentence and its exit code.
/// Results go to std::cout, everything else through base/log.h.
namespace phalanx::cli {

/// CLI11's App, made in one source file, since the compiler would make all of it again in each.
/// It knows no abbreviations; `allow_extras()` leaves unknown arguments to `remaining()`, for
/// overrides like --section.key=value.
class CommandLine : public CLI::App {
 public:
  CommandLine(std::string description, std::string name);
  ~CommandLine() override;

  /// False when --help was asked for, and printed. Throws Error(usage) on a wrong command line.
  bool read(int argc, char** argv);
};

}  // namespace phalanx::cli
