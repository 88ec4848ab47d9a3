#include "phalanx/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"

namespace phalanx {

std::string to_json(const StepMetrics& metrics) {
  nlohmann::ordered_json line = {{"step", metrics.step},
                                 {"tokens", metrics.tokens},
                                 {"loss", metrics.loss},
                                 {"grad_norm", metrics.grad_norm},
                                 {"lr", metrics.lr},
                                 {"step_ms", metrics.step_ms},
                                 {"tokens_per_s", metrics.tokens_per_s},
                                 {"peak_memory_bytes", metrics.peak_memory_bytes},
                                 {"comm_bytes", nlohmann::ordered_json::object()},
                                 {"comm_wait_ms", metrics.comm_wait_ms}};
  for (const auto& [row, bytes] : metrics.comm_bytes) line["comm_bytes"][row] = bytes;
  if (metrics.validation_loss) line["validation_loss"] = *metrics.validation_loss;
  if (metrics.save_ms) line["save_ms"] = *metrics.save_ms;
  if (metrics.skipped) line["skipped"] = true;
  return line.dump();
}

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  require(descriptor_ >= 0, ExitCode::environment, "cannot write ", path, ": ",
          std::strerror(errno));
  const off_t size = lseek(descriptor_, 0, SEEK_END);
  char last = '\n';
  const bool torn = size > 0 && pread(descriptor_, &last, 1, size - 1) == 1 && last != '\n';
  const bool whole = !torn || write(descriptor_, "\n", 1) == 1;
  require(whole, ExitCode::environment, "cannot write ", path, ": ", std::strerror(errno));
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  const std::string line = to_json(metrics) + "\n";
  const ssize_t written = write(descriptor_, line.data(), line.size());
  require(written == static_cast<ssize_t>(line.size()), ExitCode::environment, "cannot write ",
          path_, ": ", written < 0 ? std::strerror(errno) : "disk full");
}

}  // namespace phalanx
