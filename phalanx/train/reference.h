#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "phalanx/config/config.h"

namespace phalanx {

/// A few steps with one optimizer, from the initial values.
struct Trial {
  OptimizerConfig optimizer;
  LrConfig lr;
  int64_t steps = 3;
};

/// SGD with momentum, and AdamW with the config's options unless `dtype` is float32, where it
/// amplifies rounding (to 4e-4 with no bug present) and so proves nothing.
std::vector<Trial> verification_trials(const Config& config, int64_t steps);

/// What trials give on one rank: no engine, plain memory, gradients in `.grad`, microbatches of
/// [batch] micro. Computed in a process of its own; the results lie in memory that this process and
/// all that it forks share. All tensors are 1-D float64, of the parameters in the order of
/// blocks(spec).
class Reference {
 public:
  /// `config` is resolved, for any number of ranks.
  Reference(Config config, std::vector<Trial> trials);
  ~Reference();
  Reference(const Reference&) = delete;
  void operator=(const Reference&) = delete;

  /// Starts the process. To be called by a process of one thread.
  void start();
  /// Returns when all results are there; an Error if the process failed. By the process that
  /// started it.
  void wait();

  const std::vector<Trial>& trials() const { return trials_; }
  size_t parameter_count() const { return counts_.size(); }
  double loss(size_t trial, int64_t step) const { return at(trial, step)[0]; }
  double norm(size_t trial, int64_t step) const { return at(trial, step)[1]; }
  at::Tensor gradient(size_t trial, int64_t step, size_t parameter) const;
  at::Tensor values(size_t trial, size_t parameter) const;  ///< after the trial's last step

 private:
  double* at(size_t trial, int64_t step) const;
  at::Tensor view(double* start, size_t parameter) const;
  void compute();
  void compute_trial(size_t trial);

  Config config_;
  std::vector<Trial> trials_;
  std::vector<int64_t> counts_;  // elements of each parameter
  int64_t total_ = 0;            // and of all
  double* memory_ = nullptr;
  size_t bytes_ = 0;
  pid_t process_ = -1;
};

}  // namespace phalanx
