#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "phalanx/train/metrics.h"

namespace phalanx {

/// "step 120/600  loss 2.1342  norm 0.81  lr 3.0e-04  12.3k tok/s  41% GEMM  412 MB  ETA 0:42":
/// at most 100 columns. `limit_share`: of the machine's matrix products; negative: not known.
std::string progress_line(const StepMetrics& metrics, int64_t steps, double limit_share,
                          double eta_seconds);

/// "512 KB", "1.2 GB": three digits at most.
std::string bytes_text(double bytes);
/// "12.3k", "1.2M".
std::string count_text(double count);
/// "0:42", "1:02:03".
std::string duration_text(double seconds);

/// What a run shows on stderr while it goes on: one live line that is written over on a terminal,
/// else a plain line for every logged step. One write per change, so that lines are never torn.
class Progress {
 public:
  explicit Progress(int descriptor = 2);
  ~Progress();  ///< leaves the last live line standing
  Progress(const Progress&) = delete;
  void operator=(const Progress&) = delete;

  bool live() const { return terminal_; }
  /// The state after a step. On a terminal shown at most ten times a second; elsewhere only if
  /// `logged`.
  void update(const std::string& line, bool logged);
  /// A line that stays.
  void say(const std::string& line);
  /// Takes the live line away before others write, for example warnings.
  void clear();

 private:
  void put(const std::string& bytes);

  int descriptor_;
  bool terminal_;
  std::string shown_;  ///< the live line on the terminal
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace phalanx
