#pragma once

#include <memory>
#include <string>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/config/config.h"
#include "phalanx/data/data_set.h"
#include "phalanx/parallel/parallelize.h"

namespace phalanx {

/// The training data that a config names; Error(data) if it cannot be read.
std::shared_ptr<const DataSet> open_training_data(const Config& config);
/// The validation data; null if the config names none.
std::shared_ptr<const DataSet> open_validation_data(const Config& config);

struct Evaluation {
  double loss = 0;  ///< mean over tokens, in nats
  int64_t tokens = 0;
  int64_t samples = 0;
};

/// The loss over a whole data set, each sample once; the same on all ranks and, but for the order
/// of sums, for any number of them. Collective over `group`, the data-parallel ranks.
Evaluation evaluate(ParallelModel& model, const std::shared_ptr<const DataSet>& data, int64_t micro,
                    Communicator& group);

/// The checkpoint that `path` means: itself (step-N), or the newest of a folder of them or of a run
/// folder. Error(checkpoint) if there is none. Collective.
std::string find_checkpoint(Communicator& everyone, const std::string& path);

/// What [checkpoint] says about loading.
LoadOptions load_options(const Config& config);

struct CheckpointEvaluation {
  std::string path;  ///< of the checkpoint, folder or file
  int64_t step = 0;  ///< that it was saved after; 0 for weights of no run
  Evaluation result;
};

/// Loads the parameters of a checkpoint or of any other weights (`path` as open_source() takes it;
/// empty: the newest checkpoint of the run) under the config's layout and evaluates them.
/// Collective.
CheckpointEvaluation evaluate_checkpoint(const Config& config, std::shared_ptr<World> world,
                                         const std::string& path = "");

}  // namespace phalanx
