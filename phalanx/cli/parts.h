#pragma once

#include <iomanip>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/base/nearest.h"

namespace phalanx::cli {

/// One of the commands that a command like `phalanx bench` consists of; argv[0] is its name.
struct Part {
  const char* name;
  const char* help;
  int (*function)(int argc, char** argv);
};

/// Runs the part that argv[1] names; lists them for --help.
inline int run_part(const std::string& command, const std::string& doc, std::span<const Part> parts,
                    int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  for (const Part& part : parts)
    if (first == part.name) return part.function(argc - 1, argv + 1);
  if (first == "--help" || first == "-h") {
    std::cout << doc << "\n\nusage: phalanx " << command << " PART [arguments]\n\nparts:\n";
    for (const Part& part : parts)
      std::cout << "  " << std::left << std::setw(10) << part.name << part.help << "\n";
    return 0;
  }
  std::vector<std::string> names;
  for (const Part& part : parts) names.push_back(part.name);
  fail(ExitCode::usage,
       first.empty() ? text("no part of ", command, " given")
                     : text("no part of ", command, " '", first, "'", did_you_mean(first, names)),
       " (see phalanx ", command, " --help)");
}

}  // namespace phalanx::cli
