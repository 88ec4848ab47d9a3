#pragma once

#include <memory>
#include <optional>
#include <string>

#include "phalanx/checkpoint/manifest.h"
#include "phalanx/config/config.h"
#include "phalanx/parallel/parallelize.h"
#include "phalanx/parallel/update.h"
#include "phalanx/train/evaluation.h"
#include "phalanx/train/metrics.h"

namespace phalanx {

/// The state of a run and the steps that move it. `run_training` (run.h) is the loop around it that
/// `phalanx train` runs; a loop of one's own looks like
///
///     Trainer trainer(load_config("run.toml").config, World::join(world_from_environment()));
///     while (trainer.step() < 1000) {
///       const StepMetrics metrics = trainer.train_step();
///       if (trainer.step() % 100 == 0) trainer.save("checkpoints", 2);
///     }
///
/// Every function is collective: all ranks call it, in the same order.
class Trainer {
 public:
  /// `config` need not be resolved. Errors of config, data and memory come from here. `model`:
  /// one's own; by default what [model] says.
  Trainer(const Config& config, std::shared_ptr<World> world,
          std::unique_ptr<Model> model = nullptr);

  const Config& config() const { return config_; }  ///< resolved
  int64_t step() const { return step_; }            ///< finished optimizer steps
  int64_t tokens() const { return tokens_; }        ///< counted since the run's first step
  int64_t tokens_per_step() const { return batches_->counted_tokens(consumed_); }

  /// One optimizer step: microbatches, reduction, clipping, update. Fills step, tokens, loss,
  /// grad_norm, lr, comm_bytes and comm_wait_ms. A loss or gradient that is not finite is an
  /// Error(check_failed) that names the step and every rank's loss and leaves the trainer where it
  /// was, or with [train] on_nan = "skip" a step without an update.
  StepMetrics train_step();

  /// Over the validation data; nothing if the config names none.
  std::optional<Evaluation> evaluate();

  /// Fills the parameters with the weights that the config names: train.init_from, else those in
  /// the folder model.path, else initial values. Says which, for people. The first train_step(),
  /// evaluate() or save() does it, unless load() came before. Not needed in a loop of one's own.
  std::string initialize();
  bool begun() const { return begun_; }  ///< by initialize() or load()

  /// Writes folder/step-N, keeps the newest `keep` checkpoints, returns the new one's path.
  std::string save(const std::string& folder, int keep);
  /// What a checkpoint holds: scalars, and this rank's part of all tensors, not copied. For a
  /// Checkpointer, which saves in the background (checkpoint/checkpointer.h).
  RunState run_state();
  std::vector<StateEntry> state();
  /// Goes on from a checkpoint, whatever the layout was that wrote it; `path` as find_checkpoint()
  /// takes it. Returns the checkpoint's. Error(checkpoint) if it holds weights only, which are for
  /// train.init_from. `verified`: its hashes have been compared just now, whatever
  /// checkpoint.verify_hashes says. Warns if it was saved with another data.seed,
  /// data.sequence_length or contents of data.train. After an error the trainer only loads.
  std::string load(const std::string& path, bool verified = false);

  ParallelModel& model() { return *model_; }
  Mesh& mesh() { return mesh_; }
  Communicator& everyone() { return *everyone_; }  ///< all ranks of the run
  const DataSet& data() const { return batches_->data(); }

 private:
  std::vector<StateEntry> entries() const;
  void begin();
  double sum_over_ranks(double value, std::string_view purpose);
  [[noreturn]] void stop_at_nan(double local_loss, double loss, double norm);

  Config config_;
  std::shared_ptr<World> world_;
  Mesh mesh_;
  std::unique_ptr<Communicator> everyone_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Batches> batches_;
  std::shared_ptr<const DataSet> validation_;
  std::unique_ptr<ParallelModel> model_;
  std::unique_ptr<ShardedUpdate> update_;
  int64_t step_ = 0, consumed_ = 0, tokens_ = 0;
  bool begun_ = false;              ///< initialize() or load() has succeeded
  bool load_failed_ = false;        ///< so the values are perhaps of no step
  std::string huggingface_config_;  ///< the config.json that the model came with, for exports
};

}  // namespace phalanx
