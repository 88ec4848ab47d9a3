#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace phalanx {

/// What one step did: a line of metrics.jsonl, whose fields have the same names.
struct StepMetrics {
  int64_t step = 0;      ///< finished steps since the run's first, this one included
  int64_t tokens = 0;    ///< counted since the run's first step, over all ranks
  double loss = 0;       ///< of this step: mean over its counted tokens
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  double step_ms = 0;  ///< mean since the line before; without evaluation and checkpoints
  double tokens_per_s = 0;
  int64_t peak_memory_bytes = 0;              ///< of tensors and segments, the largest rank so far
  std::map<std::string, int64_t> comm_bytes;  ///< "<dimension>/<purpose>", received by this rank
  double comm_wait_ms = 0;                    ///< that this rank waited for others in this step
  std::optional<double> validation_loss;      ///< where the step was followed by an evaluation
  /// That steps since the line before, this one excepted, were followed by waiting for checkpoints.
  std::optional<double> save_ms;
  bool skipped = false;  ///< no update: [train] on_nan = "skip"
};

/// One JSON object, without an end of line. Numbers that are not finite become null.
std::string to_json(const StepMetrics& metrics);

/// run_dir/metrics.jsonl: append-only, one write per line, so that a run that is killed leaves
/// whole lines (a torn last one is ended before the next is added).
class MetricsFile {
 public:
  /// Error(environment) if the file cannot be written.
  explicit MetricsFile(const std::string& path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  void operator=(const MetricsFile&) = delete;
  void append(const StepMetrics& metrics);

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace phalanx
