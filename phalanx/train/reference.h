#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "phalanx/comm/communicator.h"
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
  /// True as soon as all results are there, false if they are not after `patience`; an Error, with
  /// what the process said, if it failed. By the process that started it.
  bool ready(std::chrono::milliseconds patience);

  const std::vector<Trial>& trials() const { return trials_; }
  size_t parameter_count() const { return counts_.size(); }
  double loss(size_t trial, int64_t step) const { return at(trial, step)[0]; }
  double norm(size_t trial, int64_t step) const { return at(trial, step)[1]; }
  at::Tensor gradient(size_t trial, int64_t step, size_t parameter) const;
  at::Tensor values(size_t trial, size_t parameter) const;  ///< after the trial's last step

 private:
  double* at(size_t trial, int64_t step) const;
  char* sentence() const;  // of the error that the process ended with
  void take_status(int status);
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

/// Waits on all ranks until the results of rank 0's reference are there; where it fails all ranks
/// throw its Error. It may take longer than a collective may (`deadline`): the ranks meet again and
/// again meanwhile, and rank 0 shows on stderr for how long. Collective.
void wait_together(Communicator& everyone, Reference& reference,
                   std::chrono::milliseconds deadline);

}  // namespace phalanx
