#include "phalanx/checkpoint/diff.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/read.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

using nlohmann::json;

constexpr int64_t slice_elements = 1 << 20;

// Sums over the slices of a tensor.
struct Sums {
  int64_t elements = 0, differing = 0;
  double largest = 0, difference = 0, norm = 0;  // the last two: of squares
};

double square_of_finite(const at::Tensor& values) {
  return values.to(at::kDouble).nan_to_num(0, 0, 0).pow(2).sum().item<double>();
}

void add(Sums& sums, const at::Tensor& a, const at::Tensor& b) {
  const auto both_nan = [](const at::Tensor& x, const at::Tensor& y) {
    return at::isnan(x).logical_and(at::isnan(y));
  };
  sums.elements += a.numel();
  if (a.scalar_type() == b.scalar_type() && at::equal(a, b)) {
    sums.norm += square_of_finite(b);
    return;
  }
  const bool integers = !a.is_floating_point() && !b.is_floating_point();
  const at::Tensor x = a.to(integers ? at::kLong : at::kDouble),
                   y = b.to(integers ? at::kLong : at::kDouble);
  at::Tensor differs = x.ne(y);
  if (!integers) differs = differs.logical_and(both_nan(x, y).logical_not());
  sums.differing += differs.sum().item<int64_t>();
  // Where they are equal the difference is 0, of two infinities too; a lone NaN counts as infinite.
  const at::Tensor distance =
      at::where(differs, x.sub(y).abs().to(at::kDouble), at::zeros({}, at::kDouble))
          .nan_to_num(std::numeric_limits<double>::infinity(),
                      std::numeric_limits<double>::infinity());
  if (distance.numel() > 0) sums.largest = std::max(sums.largest, distance.max().item<double>());
  sums.difference += distance.pow(2).sum().item<double>();
  sums.norm += square_of_finite(b);
}

// A tensor that two sides have, or one of them.
struct Compared {
  TensorDifference difference;
  Sums sums;
};

// Fills in the numbers. What is left in `what` says whether it counts as different.
TensorDifference finish(const Compared& compared, double tolerance) {
  TensorDifference found = compared.difference;
  const Sums& sums = compared.sums;
  found.elements = sums.elements, found.differing = sums.differing;
  found.largest = sums.largest;
  if (sums.differing > 0)
    found.relative_norm = sums.norm > 0 ? std::sqrt(sums.difference / sums.norm)
                                        : std::numeric_limits<double>::infinity();
  // Squares of tiny numbers are 0, and so may the norm be: without a tolerance it does not count.
  if (found.what.empty() && found.differing > 0 &&
      (tolerance == 0 || !(found.relative_norm <= tolerance)))
    found.what = "values";
  return found;
}

at::Tensor read(const Source& source, const ManifestEntry& entry, const Box& box) {
  at::Tensor values = at::empty(box.size, scalar_type(entry.dtype));
  read_box(source, entry, box, values);
  return values;
}

std::string described(Dtype dtype, const std::vector<int64_t>& shape) {
  return name(dtype) + shape_string(shape);
}

// What keeps the values from being compared, or the types from being equal; empty if nothing.
std::string form_difference(Dtype a, const std::vector<int64_t>& shape_a, Dtype b,
                            const std::vector<int64_t>& shape_b, double tolerance) {
  if (shape_a != shape_b) return "other shape";
  if (a != b && (tolerance == 0 || !convertible(a, b))) return "other type";
  return "";
}

Compared compare_forms(const std::string& tensor, const std::string& role, Dtype a,
                       const std::vector<int64_t>& shape_a, Dtype b,
                       const std::vector<int64_t>& shape_b, double tolerance) {
  return {{tensor, role, form_difference(a, shape_a, b, shape_b, tolerance), described(a, shape_a),
           described(b, shape_b)},
          {}};
}

Compared compare_tensor(const Source& a, const ManifestEntry& in_a, const Source& b,
                        const ManifestEntry& in_b, double tolerance) {
  Compared found = compare_forms(in_a.name, in_a.role, in_a.dtype, in_a.shape, in_b.dtype,
                                 in_b.shape, tolerance);
  if (in_a.shape == in_b.shape)
    for_each_slice(whole_box(in_a.shape), slice_elements, [&](const Box& slice) {
      add(found.sums, read(a, in_a, slice), read(b, in_b, slice));
    });
  return found;
}

TensorDifference lonely(const ManifestEntry& entry, bool in_a) {
  TensorDifference found{entry.name, entry.role, in_a ? "only in A" : "only in B"};
  (in_a ? found.a : found.b) = described(entry.dtype, entry.shape);
  return found;
}

// "section.key" to value, of the TOML that we write: one key per line.
std::map<std::string, std::string> config_values(const std::string& toml) {
  std::map<std::string, std::string> values;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with('[') && line.ends_with(']'))
      section = line.substr(1, line.size() - 2) + ".";
    else if (equals != std::string::npos)
      values["config " + section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return values;
}

std::map<std::string, std::string> run_values(const RunState& run) {
  std::map<std::string, std::string> values;
  values["step"] = std::to_string(run.step);
  values["consumed_samples"] = std::to_string(run.consumed_samples);
  for (const auto& [key, value] : run.values)
    values["value " + key] = std::visit([](const auto& held) { return json(held).dump(); }, value);
  return values;
}

std::vector<RunDifference> compare_runs(const RunState& a, const RunState& b) {
  auto in_a = run_values(a), in_b = run_values(b);
  std::vector<RunDifference> found;
  if (!a.config.empty() && !b.config.empty()) {
    in_a.merge(config_values(a.config));
    in_b.merge(config_values(b.config));
  } else if (a.config != b.config) {  // other tools' formats have none
    found.push_back({"config", a.config.empty() ? "" : "there", b.config.empty() ? "" : "there"});
  }
  for (const auto& [key, value] : in_a)
    if (const auto other = in_b.find(key); other == in_b.end() || other->second != value)
      found.push_back({key, value, other == in_b.end() ? "" : other->second});
  for (const auto& [key, value] : in_b)
    if (!in_a.contains(key)) found.push_back({key, "", value});
  return found;
}

}  // namespace

CheckpointDifference compare(const Source& a, const Source& b, double tolerance) {
  at::NoGradGuard no_grad;
  CheckpointDifference found;
  const auto in_a = by_key(a.manifest), in_b = by_key(b.manifest);
  for (const auto& [key, entry] : in_a) {
    const auto other = in_b.find(key);
    if (other == in_b.end()) {
      found.tensors.push_back(lonely(*entry, true));
      continue;
    }
    TensorDifference difference =
        finish(compare_tensor(a, *entry, b, *other->second, tolerance), tolerance);
    if (difference.what.empty())
      ++(difference.differing == 0 ? found.identical : found.within);
    else
      found.tensors.push_back(std::move(difference));
  }
  for (const auto& [key, entry] : in_b)
    if (!in_a.contains(key)) found.tensors.push_back(lonely(*entry, false));
  found.run = compare_runs(a.manifest.run, b.manifest.run);
  return found;
}

}  // namespace phalanx
