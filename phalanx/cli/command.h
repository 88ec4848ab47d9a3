#pragma once

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/base/nearest.h"

/// How to add a command.
///
/// 1. phalanx/cli/NAME.cpp with one function; argv[0] is the command's name:
///
///      extern "C" int phalanx_command_NAME(int argc, char** argv) {
///        CLI::App app("What it does, in one sentence.", "phalanx NAME");
///        std::string config;
///        app.add_option("config", config, "the run's TOML file")->required();
///        if (!phalanx::cli::parse(app, argc, argv)) return 0;  // --help was asked for
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

using CommandFunction = int (*)(int argc, char** argv);

/// Parses the command line. False when --help was asked for, and printed. Throws Error(usage) on a
/// wrong one. CLI11 knows no abbreviations; `app.allow_extras()` leaves unknown arguments to
/// `app.remaining()`, for overrides like --section.key=value.
inline bool parse(CLI::App& app, int argc, char** argv) {
  app.set_help_flag("-h,--help", "this help");
  for (CLI::App* sub : app.get_subcommands({})) sub->set_help_flag("-h,--help", "this help");
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    std::vector<std::string> names;  // of options and subcommands
    for (const CLI::App* level : app.get_subcommands({}))
      if (!level->get_name().empty()) names.push_back(level->get_name());
    const std::vector<std::string> subcommands = names;
    for (const CLI::App* level = &app; level;) {
      for (const CLI::Option* option : level->get_options())
        for (const auto& name : option->get_lnames()) names.push_back("--" + name);
      level = level->get_subcommands().empty() ? nullptr : level->get_subcommands().front();
    }
    // CLI11 says of a wrong subcommand only that one is required.
    const int kind = error.get_exit_code();
    const bool unknown_word = kind == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                              kind == static_cast<int>(CLI::ExitCodes::RequiredError);
    std::string hint;
    for (int i = 1; unknown_word && i < argc && hint.empty(); ++i) {
      const std::string word = std::string(argv[i]).substr(0, std::string(argv[i]).find('='));
      if (std::find(names.begin(), names.end(), word) == names.end())
        hint = did_you_mean(word, names);
    }
    if (hint.empty() && app.get_subcommands().empty())
      for (size_t i = 0; i < subcommands.size(); ++i)
        hint += (i == 0 ? ": " : i + 1 < subcommands.size() ? ", " : " or ") + subcommands[i];
    fail(ExitCode::usage, app.get_name(), ": ", error.what(), hint, " (see ", app.get_name(),
         " --help)");
  }
}

}  // namespace phalanx::cli
