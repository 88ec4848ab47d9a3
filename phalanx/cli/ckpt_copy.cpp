#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/copy.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/cli/ckpt.h"
#include "phalanx/cli/command.h"

namespace phalanx::cli {

int ckpt_copy(int argc, char** argv) {
  CommandLine app("Copies a checkpoint to another place and compares its hashes on the way.",
                  "phalanx ckpt copy");
  std::string from, to;
  bool json = false, replace = false;
  app.add_option("checkpoint", from,
                 "a checkpoint, or a run's or checkpoints' place, of which the newest is taken; "
                 "a folder or s3://bucket/prefix")
      ->required();
  app.add_option("place", to, "where the copy becomes step-N; a folder or s3://bucket/prefix")
      ->required();
  app.add_flag("--replace", replace,
               "also where another checkpoint of that step is, which it replaces");
  app.add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;
  const auto place = open_storage(to);
  const std::string whole = place->path(""), last = std::filesystem::path(whole).filename();
  require(!step_of(last), ExitCode::usage, "phalanx ckpt copy: ", to,
          " has the name of a checkpoint; name the place that shall hold ", last, ", without /",
          last);
  const std::string source = resolve_checkpoint(from);
  const CopiedCheckpoint copied = copy_checkpoint(*open_storage(source), "", *place, replace);
  if (json)
    std::cout << nlohmann::ordered_json{{"checkpoint", source},  {"copy", copied.path},
                                        {"step", copied.step},   {"files", copied.files},
                                        {"bytes", copied.bytes}, {"was_there", copied.was_there}}
              << "\n";
  else if (copied.was_there)
    std::cout << copied.path << " is there already, with the same manifest as " << source << "\n";
  else
    std::cout << copied.path << " is a copy of " << source << ": step " << copied.step << ", "
              << copied.files << (copied.files == 1 ? " file, " : " files, ") << copied.bytes
              << " bytes, every hash as saved\n";
  return 0;
}

}  // namespace phalanx::cli
