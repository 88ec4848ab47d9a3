#include "phalanx/data/batches.h"

#include <ATen/ATen.h>

#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/data/order.h"

namespace phalanx {
namespace {

Microbatch empty_microbatch(int64_t rows, int64_t length, int64_t first_row) {
  return {at::zeros({rows, length}, at::kLong), at::full({rows, length}, -1, at::kLong), first_row};
}

// Row `row` := the sample's tokens, and the same shifted by one as targets.
void fill_row(const DataSet& data, int64_t sample, Microbatch& batch, int64_t row,
              std::vector<int64_t>& buffer) {
  const int64_t length = data.sequence_length();
  buffer.resize(length + 1);
  data.read(sample, buffer.data());
  std::copy_n(buffer.data(), length, batch.tokens.data_ptr<int64_t>() + row * length);
  std::copy_n(buffer.data() + 1, length, batch.targets.data_ptr<int64_t>() + row * length);
}

void check_split(int64_t micro, int ranks, int rank) {
  require(micro > 0 && ranks > 0 && 0 <= rank && rank < ranks, ExitCode::usage,
          "batch.micro = ", micro, " on rank ", rank, " of ", ranks, " gives no rows");
}

}  // namespace

Batches::Batches(std::shared_ptr<const DataSet> data, const BatchSplit& split, uint64_t seed)
    : data_(std::move(data)), split_(split), seed_(seed) {
  check_split(split.micro, split.ranks, split.rank);
  const int64_t grain = split.micro * split.ranks;
  require(split.global > 0 && split.global % grain == 0, ExitCode::usage,
          "batch.global = ", split.global, " is not a multiple of ", grain,
          " (batch.micro = ", split.micro, " on ", split.ranks, " data-parallel ranks): use ",
          (split.global / grain + 1) * grain);
  require(data_->samples() >= split.global, ExitCode::data, "the training data has ",
          data_->samples(), " samples of ", data_->sequence_length(),
          " tokens, one step needs batch.global = ", split.global, " (", split.ranks,
          " data-parallel ranks, batch.micro = ", split.micro,
          "): give more data or a smaller batch");
}

Microbatch Batches::microbatch(int64_t consumed, int64_t index) const {
  require(consumed >= 0 && 0 <= index && index < microbatches(), ExitCode::usage, "no microbatch ",
          index, " after ", consumed, " samples; a step has ", microbatches());
  const int64_t first = split_.rank * (split_.global / split_.ranks) + index * split_.micro;
  Microbatch batch = empty_microbatch(split_.micro, data_->sequence_length(), first);
  std::vector<int64_t> buffer;
  for (int64_t row = 0; row < split_.micro; ++row)
    fill_row(*data_, sample_at(seed_, consumed + first + row, data_->samples()), batch, row,
             buffer);
  return batch;
}

int64_t Batches::counted_tokens(int64_t) const { return split_.global * data_->sequence_length(); }

ValidationBatches::ValidationBatches(std::shared_ptr<const DataSet> data, int64_t micro, int ranks,
                                     int rank)
    : data_(std::move(data)), micro_(micro), ranks_(ranks), rank_(rank) {
  check_split(micro, ranks, rank);
}

int64_t ValidationBatches::steps() const {
  const int64_t rows = micro_ * ranks_;
  return (data_->samples() + rows - 1) / rows;
}

Microbatch ValidationBatches::step(int64_t index) const {
  require(0 <= index && index < steps(), ExitCode::usage, "no validation step ", index, " of ",
          steps());
  Microbatch batch = empty_microbatch(micro_, data_->sequence_length(), rank_ * micro_);
  std::vector<int64_t> buffer;
  const int64_t first = index * ranks_ * micro_ + rank_ * micro_;
  for (int64_t row = 0; row < micro_ && first + row < data_->samples(); ++row)
    fill_row(*data_, first + row, batch, row, buffer);
  return batch;
}

}  // namespace phalanx
