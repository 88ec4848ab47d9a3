#pragma once

#include <functional>
#include <string>

#include "phalanx/train/trainer.h"

namespace phalanx {

struct RunOptions {
  /// Asked after every step; not 0 (a signal's number) on any rank stops all ranks after a save.
  std::function<int()> stop_requested = [] { return 0; };
  /// Asked after every step; the number of times that a save was asked for (a signal may come to
  /// ranks at different steps: the largest number of all ranks counts).
  std::function<int()> saves_requested = [] { return 0; };
  int threads = 1;     ///< of this rank, to be shown
  int descriptor = 2;  ///< where progress goes
};

enum class Ending {
  finished,      ///< [train] steps are done
  was_finished,  ///< they were before this run: nothing was trained
  interrupted,   ///< stopped on request, and saved
  not_saved,     ///< stopped on request with [checkpoint] off
};

/// Trains to [train] steps in [train] run_dir: goes on from the newest checkpoint (without one from
/// where the trainer is, if it has loaded or trained before), logs metrics.jsonl, shows progress,
/// evaluates, saves. Collective.
Ending run_training(Trainer& trainer, const RunOptions& options);

}  // namespace phalanx
