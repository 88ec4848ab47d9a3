#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/verify.h"
#include "phalanx/cli/ckpt.h"
#include "phalanx/cli/command.h"

namespace phalanx::cli {
namespace {

int verify(const std::string& given, bool json) {
  const std::string path = resolve_checkpoint(given);
  const auto storage = open_storage(path);
  const Manifest manifest = read_manifest(*storage, "");
  auto defects = size_defects(*storage, "", manifest);
  if (defects.empty()) defects = content_defects(*storage, "", manifest);
  int64_t bytes = 0;
  for (const auto& [file, size] : manifest.files) bytes += size;
  if (json) {
    std::cout << nlohmann::ordered_json{{"checkpoint", path},
                                        {"step", manifest.run.step},
                                        {"tensors", manifest.entries.size()},
                                        {"bytes", bytes},
                                        {"defects", defects}}
              << "\n";
  } else {
    for (const auto& defect : defects) std::cout << defect << "\n";
    if (defects.empty())
      std::cout << path << " is whole: step " << manifest.run.step << ", "
                << manifest.entries.size()
                << (manifest.entries.size() == 1 ? " tensor, " : " tensors, ")
                << manifest.files.size() << (manifest.files.size() == 1 ? " file, " : " files, ")
                << bytes << " bytes, every hash as saved\n";
  }
  return static_cast<int>(defects.empty() ? ExitCode::done : ExitCode::check_failed);
}

}  // namespace

int ckpt_verify(int argc, char** argv) {
  CommandLine app(
      "Reads all of a checkpoint and compares hashes; exit code 1 and what is wrong, if anything.",
      "phalanx ckpt verify");
  std::string path;
  bool json = false;
  app.add_option("checkpoint", path, "a folder step-N, or a run's folder (its newest)")->required();
  app.add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;
  return verify(path, json);
}

}  // namespace phalanx::cli
