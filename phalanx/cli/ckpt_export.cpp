#include <nlohmann/json.hpp>

#include "phalanx/base/nearest.h"
#include "phalanx/checkpoint/dcp.h"
#include "phalanx/checkpoint/export.h"
#include "phalanx/cli/ckpt.h"
#include "phalanx/cli/command.h"
#include "phalanx/train/saved_config.h"

namespace phalanx::cli {
namespace {

// A form that checkpoints can be exported to. A new one is a function and a line in the table.
struct Format {
  const char* name;
  Exported (*write)(const Source& source, const std::string& path, const ExportOptions& options);
};

Exported write_huggingface(const Source& source, const std::string& path,
                           const ExportOptions& options) {
  return export_huggingface(source, path, exported_config(source), options);
}

constexpr Format formats[] = {{"huggingface", write_huggingface}, {"dcp", export_dcp}};

const Format& find_format(const std::string& name) {
  std::vector<std::string> names;
  for (const Format& format : formats) {
    if (name == format.name) return format;
    names.push_back(format.name);
  }
  fail(ExitCode::usage, "--format ", name, " is none of ", join(names), did_you_mean(name, names));
}

// "5GB", "500 MB", "123456": units of 1000, as `transformers` counts them.
int64_t parse_size(const std::string& written) {
  size_t used = 0;
  double count = 0;
  try {
    count = std::stod(written, &used);
  } catch (const std::exception&) {
  }
  const size_t unit_at = written.find_first_not_of(' ', used);
  const std::string unit = unit_at == std::string::npos ? "" : written.substr(unit_at);
  const std::pair<const char*, double> units[] = {{"", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
  for (const auto& [name, factor] : units)
    if (used > 0 && unit == name && count * factor >= 1 && count * factor < 9e18)
      return static_cast<int64_t>(count * factor);
  fail(ExitCode::usage, "--max-file-size ", written, " is no size; write 5GB, 500MB or 100KB");
}

}  // namespace

int ckpt_export(int argc, char** argv) {
  CommandLine app(
      "Writes the weights of a checkpoint in another program's form, a piece at a time.",
      "phalanx ckpt export");
  std::string from, to, format = "huggingface", dtype = "as-saved", max_file_size = "5GB";
  bool json = false;
  app.add_option("source", from, "a checkpoint, a run's folder (its newest), or any other weights")
      ->required();
  app.add_option("destination", to, "the new folder")->required();
  app.add_option(
         "--format", format,
         "huggingface: config.json and safetensors; dcp: a folder of torch.distributed.checkpoint, "
         "with the optimizer's state")
      ->capture_default_str();
  app.add_option("--dtype", dtype, "of floating-point tensors, but not of optimizer states")
      ->check(CLI::IsMember({"as-saved", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--max-file-size", max_file_size, "more than this goes into several files")
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;
  const Format& form = find_format(format);
  const ExportOptions options{dtype_named(&DtypeRow::name, dtype), parse_size(max_file_size)};
  const Source source = open_source(from);
  const Exported written = form.write(source, to, options);
  if (json)
    std::cout << nlohmann::ordered_json{{"source", source.path},       {"destination", to},
                                        {"format", form.name},         {"tensors", written.tensors},
                                        {"files", written.files},      {"bytes", written.bytes},
                                        {"dtype", name(written.dtype)}}
              << "\n";
  else
    std::cout << to << ": " << written.tensors << " tensors, " << written.bytes << " bytes of "
              << name(written.dtype) << " in " << written.files
              << (written.files == 1 ? " file" : " files") << ", from " << source.path << "\n";
  return 0;
}

}  // namespace phalanx::cli
