#include <ctime>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/verify.h"
#include "phalanx/cli/command.h"

namespace phalanx::cli {
namespace {

struct Total {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

std::map<std::string, Total> totals(const Manifest& manifest) {
  std::map<std::string, Total> by_role;
  for (const auto& entry : manifest.entries) {
    Total& total = by_role[entry.role];
    ++total.tensors;
    total.elements += element_count(entry.shape);
    total.bytes += element_count(entry.shape) * size_of(entry.dtype);
  }
  return by_role;
}

std::string local_time(int64_t nanoseconds) {
  const std::time_t seconds = nanoseconds / 1'000'000'000;
  char written[64];
  std::strftime(written, sizeof(written), "%Y-%m-%d %H:%M:%S", std::localtime(&seconds));
  return written;
}

nlohmann::ordered_json value_json(const Value& value) {
  return std::visit([](const auto& held) { return nlohmann::ordered_json(held); }, value);
}

nlohmann::ordered_json description(const std::string& path, const Manifest& manifest) {
  nlohmann::ordered_json fields = {{"checkpoint", path},
                                   {"format_version", Manifest::format_version},
                                   {"step", manifest.run.step},
                                   {"consumed_samples", manifest.run.consumed_samples},
                                   {"created", manifest.created},
                                   {"versions", manifest.run.versions},
                                   {"values", nlohmann::ordered_json::object()},
                                   {"files", manifest.files},
                                   {"tensors", nlohmann::ordered_json::array()},
                                   {"config", manifest.run.config}};
  for (const auto& [key, value] : manifest.run.values) fields["values"][key] = value_json(value);
  for (const auto& entry : manifest.entries)
    fields["tensors"].push_back({{"name", entry.name},
                                 {"role", entry.role},
                                 {"dtype", name(entry.dtype)},
                                 {"shape", entry.shape},
                                 {"parts", entry.parts.size()}});
  return fields;
}

void print_table(const std::string& path, const Manifest& manifest) {
  const auto line = [](const std::string& key, const auto& value) {
    std::cout << std::left << std::setw(18) << key << value << "\n";
  };
  line("checkpoint", path);
  line("step", manifest.run.step);
  line("consumed samples", manifest.run.consumed_samples);
  line("saved", local_time(manifest.created));
  for (const auto& [key, value] : manifest.run.versions) line(key, value);
  for (const auto& [key, value] : manifest.run.values) line(key, value_json(value).dump());
  for (const auto& [file, bytes] : manifest.files) line("file", text(file, "  ", bytes, " bytes"));
  for (const auto& [role, total] : totals(manifest))
    line(role,
         text(total.tensors, " tensors, ", total.elements, " elements, ", total.bytes, " bytes"));
  size_t width = 6;
  for (const auto& entry : manifest.entries) width = std::max(width, entry.name.size());
  std::cout << "\n"
            << std::left << std::setw(static_cast<int>(width) + 2) << "tensor" << std::setw(14)
            << "role" << std::setw(10) << "dtype" << std::setw(20) << "shape"
            << "parts\n";
  for (const auto& entry : manifest.entries)
    std::cout << std::setw(static_cast<int>(width) + 2) << entry.name << std::setw(14) << entry.role
              << std::setw(10) << name(entry.dtype) << std::setw(20) << shape_string(entry.shape)
              << entry.parts.size() << "\n";
}

int verify(const std::string& path, bool json) {
  const Manifest manifest = read_manifest(path);
  auto defects = size_defects(path, manifest);
  if (defects.empty()) defects = content_defects(path, manifest);
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
                << manifest.entries.size() << " tensors, " << manifest.files.size() << " files, "
                << bytes << " bytes, every hash as saved\n";
  }
  return static_cast<int>(defects.empty() ? ExitCode::done : ExitCode::check_failed);
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int phalanx_command_ckpt(int argc, char** argv) {
  using namespace phalanx;
  CLI::App app("Looks into checkpoints and verifies them.", "phalanx ckpt");
  app.require_subcommand(1);
  std::string path;
  bool json = false;
  CLI::App* inspect = app.add_subcommand("inspect", "step, versions and tensors of a checkpoint");
  CLI::App* verify = app.add_subcommand(
      "verify", "reads all of it and compares hashes; exit code 1 and what is wrong, if anything");
  for (CLI::App* command : {inspect, verify}) {
    command->add_option("checkpoint", path, "a folder step-N")->required();
    command->add_flag("--json", json, "one JSON object");
  }
  if (!cli::parse(app, argc, argv)) return 0;
  if (verify->parsed()) return cli::verify(path, json);
  const Manifest manifest = read_manifest(path);
  if (json)
    std::cout << cli::description(path, manifest).dump() << "\n";
  else
    cli::print_table(path, manifest);
  return 0;
}
