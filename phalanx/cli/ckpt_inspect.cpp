#include <ctime>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/cli/ckpt.h"
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

// A value may be a whole file (huggingface_config); --json has all of it.
std::string shortened(const std::string& value) {
  constexpr size_t most = 60;
  return value.size() <= most ? value : value.substr(0, most) + " ...";
}

nlohmann::ordered_json description(const Source& source) {
  const Manifest& manifest = source.manifest;
  nlohmann::ordered_json fields = {{"checkpoint", source.path},
                                   {"format", source.format},
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

void print_table(const Source& source) {
  const Manifest& manifest = source.manifest;
  const auto line = [](const std::string& key, const auto& value) {
    std::cout << std::left << std::setw(18) << key << value << "\n";
  };
  line("checkpoint", source.path);
  line("format", source.format);
  if (source.format == "phalanx" || manifest.run.step > 0) line("step", manifest.run.step);
  if (source.format == "phalanx") {
    line("consumed samples", manifest.run.consumed_samples);
    line("saved", local_time(manifest.created));
  }
  for (const auto& [key, value] : manifest.run.versions) line(key, value);
  for (const auto& [key, value] : manifest.run.values)
    line(key, shortened(value_json(value).dump()));
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

// Of a checkpoint of ours even if its files are damaged; of any other form that can be read.
Source described(const std::string& path) {
  if (is_url(path) || kind_of_path(path, ExitCode::checkpoint) != PathKind::file)
    for (const auto& item : open_storage(path)->list(""))
      if (item.name == "manifest.json")
        return {.format = "phalanx", .manifest = read_manifest(path), .path = path};
  return open_source(path);
}

}  // namespace

int ckpt_inspect(int argc, char** argv) {
  CommandLine app("Step, versions and tensors of a checkpoint.", "phalanx ckpt inspect");
  std::string path;
  bool json = false;
  app.add_option(
         "checkpoint", path,
         "a folder step-N, a run's folder (its newest), or weights in any form that is read")
      ->required();
  app.add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;
  const Source source = described(path);
  if (json)
    std::cout << description(source).dump() << "\n";
  else
    print_table(source);
  return 0;
}

}  // namespace phalanx::cli
