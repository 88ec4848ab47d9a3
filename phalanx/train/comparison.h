#pragma once

#include <memory>
#include <string>
#include <vector>

#include "phalanx/comm/mesh.h"
#include "phalanx/train/reference.h"

namespace phalanx {

/// The largest difference of one kind in one trial. Differences are relative, in 2-norms:
///   loss, norm  |a - b| / |b|
///   gradient    |a - b| / max(|b|, 1e-3 x norm of the whole gradient), per parameter
///   parameter   |a - b| / |b|, per parameter
struct Difference {
  std::string optimizer, quantity;
  double error = 0;
  double tolerance = 0;
  std::string tensor;  ///< of gradient and parameter
  int64_t step = 0;    ///< from 1
  int rank = 0;        ///< whose copy, where every rank has one
  bool equal() const { return error <= tolerance; }
};

struct Comparison {
  std::vector<Difference> worst;  ///< per trial: loss, norm, gradient, parameter
  bool equal() const;
  const Difference& largest() const;  ///< by error / tolerance
};

/// 1e-9 for float64, 1e-5 for float32.
double comparison_tolerance(Dtype dtype);

/// Runs the trials under the config's layout and compares every loss, gradient norm, gradient and
/// the last parameters (as each rank sees them) with the reference. Collective; the result is rank
/// 0's, whose `reference` is read, and the same on all ranks but for names. `planted_error`: the
/// last rank's gradients are wrong by this factor, to see that the comparison notices.
Comparison compare_with_one_rank(const Config& config, Mesh& mesh, const Reference& reference,
                                 double planted_error = 0);

/// The table that `phalanx verify` prints, and its JSON line.
std::string comparison_table(const Comparison& comparison);
std::string comparison_json(const Comparison& comparison, const Config& config, int ranks);

}  // namespace phalanx
