#include "phalanx/config/config.h"

namespace phalanx {

const char* name(DataKind kind) {
  switch (kind) {
    case DataKind::tokens:
      return "tokens";
    case DataKind::synthetic:
      return "synthetic";
  }
  return "?";
}

const char* name(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw:
      return "adamw";
    case OptimizerKind::sgd:
      return "sgd";
  }
  return "?";
}

const char* name(LrScheduleKind kind) {
  switch (kind) {
    case LrScheduleKind::cosine:
      return "cosine";
    case LrScheduleKind::constant:
      return "constant";
  }
  return "?";
}

const char* name(OnNan action) {
  switch (action) {
    case OnNan::stop:
      return "stop";
    case OnNan::skip:
      return "skip";
  }
  return "?";
}

const char* name(RecomputeMode mode) {
  switch (mode) {
    case RecomputeMode::none:
      return "none";
    case RecomputeMode::full:
      return "full";
  }
  return "?";
}

std::string checkpoint_folder(const Config& config) {
  const std::string& folder = config.checkpoint.folder;
  return folder.empty() ? config.train.run_dir + "/checkpoints" : folder;
}

}  // namespace phalanx
