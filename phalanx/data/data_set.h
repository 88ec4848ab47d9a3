#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace phalanx {

/// A file of a data set, as ranks compare theirs.
struct DataFile {
  std::string path;
  int64_t tokens;
  uint64_t hash;  ///< of its header, in which the hash of the contents is
};

/// Samples of equal length: sample i is sequence_length() + 1 tokens, the last of which is only a
/// target.
class DataSet {
 public:
  virtual ~DataSet() = default;
  virtual int64_t samples() const = 0;
  virtual int64_t sequence_length() const = 0;
  /// Writes sequence_length() + 1 ids to `out`.
  virtual void read(int64_t sample, int64_t* out) const = 0;
  virtual std::string describe() const = 0;  ///< "2 files, 1000 tokens, 62 samples of 16"
  virtual std::vector<DataFile> files() const { return {}; }  ///< in order
};

/// The tokens of all files, one after another, cut into windows with stride sequence_length: the
/// first token of a window is the last target of the window before. Files are checked against the
/// model's vocabulary; less than one sample is an Error(data) with the numbers.
std::shared_ptr<const DataSet> open_token_files(const std::vector<std::string>& paths,
                                                int64_t sequence_length, int64_t vocab_size);

/// For trials: t' = 5 t + 7 + noise (0 to 3), modulo the vocabulary, from a first token; both keyed
/// by (seed, sample, position). A model can learn it down to a loss of log 4.
std::shared_ptr<const DataSet> synthetic_data(int64_t samples, int64_t sequence_length,
                                              int64_t vocab_size, uint64_t seed);

}  // namespace phalanx
