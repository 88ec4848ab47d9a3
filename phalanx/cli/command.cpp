#include "phalanx/cli/command.h"

#include <iostream>

#include "phalanx/base/error.h"
#include "phalanx/base/nearest.h"

namespace phalanx::cli {

CommandLine::CommandLine(std::string description, std::string name)
    : CLI::App(std::move(description), std::move(name)) {}

CommandLine::~CommandLine() = default;

bool CommandLine::read(int argc, char** argv) {
  set_help_flag("-h,--help", "this help");
  for (CLI::App* sub : get_subcommands({})) sub->set_help_flag("-h,--help", "this help");
  try {
    parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    std::cout << help();
    return false;
  } catch (const CLI::ParseError& error) {
    std::vector<std::string> names;  // of options and subcommands
    for (const CLI::App* level : get_subcommands({}))
      if (!level->get_name().empty()) names.push_back(level->get_name());
    const std::vector<std::string> subcommands = names;
    for (const CLI::App* level = this; level;) {
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
    if (hint.empty() && get_subcommands().empty())
      for (size_t i = 0; i < subcommands.size(); ++i)
        hint += (i == 0 ? ": " : i + 1 < subcommands.size() ? ", " : " or ") + subcommands[i];
    fail(ExitCode::usage, get_name(), ": ", error.what(), hint, " (see ", get_name(), " --help)");
  }
}

}  // namespace phalanx::cli
