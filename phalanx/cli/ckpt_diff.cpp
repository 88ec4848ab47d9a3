#include <cmath>
#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/diff.h"
#include "phalanx/cli/ckpt.h"
#include "phalanx/cli/command.h"

namespace phalanx::cli {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json("inf"); }

void print_json(const Source& a, const Source& b, double tolerance,
                const CheckpointDifference& found) {
  Json line = {{"a", a.path},
               {"b", b.path},
               {"tolerance", tolerance},
               {"equal", found.tensors.empty()},
               {"identical", found.identical},
               {"within_tolerance", found.within},
               {"tensors", Json::array()},
               {"run", Json::array()}};
  for (const auto& tensor : found.tensors)
    line["tensors"].push_back({{"name", tensor.name},
                               {"role", tensor.role},
                               {"what", tensor.what},
                               {"a", tensor.a},
                               {"b", tensor.b},
                               {"elements", tensor.elements},
                               {"differing", tensor.differing},
                               {"largest", number(tensor.largest)},
                               {"relative_norm", number(tensor.relative_norm)}});
  for (const auto& run : found.run)
    line["run"].push_back({{"key", run.key}, {"a", run.a}, {"b", run.b}});
  std::cout << line.dump() << "\n";
}

std::string values_text(const TensorDifference& tensor) {
  return text(tensor.differing, " of ", tensor.elements, " elements differ, by ", tensor.largest,
              " at most, ", tensor.relative_norm, " of the 2-norm");
}

// A value of the run; long ones, a whole file for example, are cut.
std::string shown(const std::string& value) {
  if (value.empty()) return "missing";
  return value.size() <= 80 ? value : value.substr(0, 60) + "...";
}

void print_text(const Source& a, const Source& b, const CheckpointDifference& found) {
  std::cout << "A  " << a.path << " (" << a.format << ")\nB  " << b.path << " (" << b.format
            << ")\n";
  for (const auto& tensor : found.tensors) {
    std::cout << tensor.name << " (" << tensor.role << "): " << tensor.what;
    if (tensor.a != tensor.b && !tensor.a.empty() && !tensor.b.empty())
      std::cout << ", " << tensor.a << " and " << tensor.b;
    else if (tensor.a != tensor.b)
      std::cout << ", " << tensor.a << tensor.b;
    if (tensor.elements > 0 && tensor.differing > 0) std::cout << ", " << values_text(tensor);
    std::cout << "\n";
  }
  for (const auto& run : found.run)
    std::cout << "run: " << run.key << " is " << shown(run.a) << " in A, " << shown(run.b)
              << " in B\n";
  std::cout << found.identical << " tensors are identical, ";
  if (found.within > 0) std::cout << found.within << " equal within the tolerance, ";
  std::cout << found.tensors.size() << " differ\n";
}

}  // namespace

int ckpt_diff(int argc, char** argv) {
  CommandLine app(
      "Compares the tensors of two checkpoints, of any formats and layouts. Exit code 1 if any "
      "differ; differences of step or config are listed, and are no reason for it.",
      "phalanx ckpt diff");
  std::string a, b;
  double tolerance = 0;
  bool json = false;
  app.add_option("a", a, "a checkpoint, a run's folder (its newest), or weights")->required();
  app.add_option("b", b, "what it is compared with")->required();
  app.add_option("--tolerance", tolerance,
                 "largest |a - b| / |b|, 2-norms per tensor, that does not count; then element "
                 "types may differ too")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag("--json", json, "one JSON object");
  if (!app.read(argc, argv)) return 0;
  const Source first = open_source(a), second = open_source(b);
  const CheckpointDifference found = compare(first, second, tolerance);
  if (json)
    print_json(first, second, tolerance, found);
  else
    print_text(first, second, found);
  return static_cast<int>(found.tensors.empty() ? ExitCode::done : ExitCode::check_failed);
}

}  // namespace phalanx::cli
