#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "phalanx/data/data_set.h"

namespace phalanx {

/// What one forward sees.
struct Microbatch {
  at::Tensor tokens;   ///< [micro, sequence] int64
  at::Tensor targets;  ///< [micro, sequence] int64: the next tokens; -1 is not counted
  int64_t first_row;   ///< of its first row in the step's global batch (SequenceMap::first_sample)
};

/// How a step's rows are spread. `ranks` are those that see different rows (dp_replicate x
/// dp_shard), `rank` this one's place among them.
struct BatchSplit {
  int64_t global = 1;  ///< rows per step
  int64_t micro = 1;   ///< rows per forward on one rank
  int ranks = 1;
  int rank = 0;
};

/// The training data in the order of the run. The only state is the number of samples consumed
/// since the run's first step, so that a run that goes on with other ranks, micro batch or global
/// batch repeats and skips nothing. Rank r has rows [r, r + 1) x global / ranks of the global
/// batch.
class Batches {
 public:
  /// Error(usage) if `global` is not a multiple of ranks x micro, Error(data) if the data set has
  /// fewer samples than one global batch.
  Batches(std::shared_ptr<const DataSet> data, const BatchSplit& split, uint64_t seed);

  int64_t microbatches() const { return split_.global / split_.ranks / split_.micro; }
  /// Microbatch `index` of the step that begins after `consumed` samples. A step consumes `global`.
  Microbatch microbatch(int64_t consumed, int64_t index) const;
  /// Counted targets of the whole step, over all ranks; known before the first forward.
  int64_t counted_tokens(int64_t consumed) const;
  const DataSet& data() const { return *data_; }

 private:
  std::shared_ptr<const DataSet> data_;
  BatchSplit split_;
  uint64_t seed_;
};

/// The validation data: every sample once, in order. All ranks make steps() forwards; rows beyond
/// the end have targets of -1, so that loss and counts are the same for any number of ranks.
class ValidationBatches {
 public:
  ValidationBatches(std::shared_ptr<const DataSet> data, int64_t micro, int ranks, int rank);
  int64_t steps() const;
  Microbatch step(int64_t index) const;
  int64_t counted_samples() const { return data_->samples(); }  ///< of all steps and ranks
  int64_t counted_tokens() const { return data_->samples() * data_->sequence_length(); }

 private:
  std::shared_ptr<const DataSet> data_;
  int64_t micro_;
  int ranks_, rank_;
};

}  // namespace phalanx
