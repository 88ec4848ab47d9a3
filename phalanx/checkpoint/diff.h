#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

/// In what one tensor of two checkpoints differs. The numbers are those of the values, where both
/// have the same shape; a NaN equals a NaN.
struct TensorDifference {
  std::string name, role;
  std::string what;          ///< "only in A", "other shape", "other type" or "values"
  std::string a, b;          ///< type and shape, "float32[3, 4]"; empty where it is missing
  int64_t elements = 0;      ///< compared
  int64_t differing = 0;     ///< of these
  double largest = 0;        ///< largest |a - b|; infinite if only one of two is finite
  double relative_norm = 0;  ///< |a - b| / |b| in 2-norms
};

struct RunDifference {
  std::string key;   ///< "step", "consumed_samples", "value x", "config section.key" ...
  std::string a, b;  ///< empty where it is missing
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;
  std::vector<RunDifference> run;  ///< versions and times of saving are not compared
  int64_t identical = 0;           ///< tensors that differ in nothing
  int64_t within = 0;              ///< tensors whose values differ by no more than the tolerance
};

/// Compares tensor by tensor, whatever layout and format wrote them, in slices of a few megabytes.
/// `tolerance`: up to which relative_norm values do not count as different; floating-point types
/// may then differ too. 0: every value must be equal.
CheckpointDifference compare(const Source& a, const Source& b, double tolerance = 0);

}  // namespace phalanx
