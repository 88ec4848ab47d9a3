#include "phalanx/data/data_set.h"

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/base/random.h"
#include "phalanx/data/token_file.h"

namespace phalanx {
namespace {

class TokenFiles final : public DataSet {
 public:
  TokenFiles(const std::vector<std::string>& paths, int64_t sequence_length, int64_t vocab_size)
      : sequence_length_(sequence_length) {
    for (const auto& path : paths) {
      begins_.push_back(tokens_);
      files_.emplace_back(path, vocab_size);
      tokens_ += files_.back().count();
    }
    require(samples() > 0, ExitCode::data, "the data has ", tokens_, " tokens (", paths.front(),
            paths.size() > 1 ? text(" and ", paths.size() - 1, " more files") : "",
            "), one sample needs ", sequence_length + 1,
            ": give more text or a smaller data.sequence_length");
  }

  int64_t samples() const override { return std::max<int64_t>(0, tokens_ - 1) / sequence_length_; }
  int64_t sequence_length() const override { return sequence_length_; }

  void read(int64_t sample, int64_t* out) const override {
    int64_t begin = sample * sequence_length_, left = sequence_length_ + 1;
    size_t file = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
    for (; left > 0; ++file) {
      const int64_t from = begin - begins_[file];
      const int64_t count = std::min(left, files_[file].count() - from);
      files_[file].read(from, count, out);
      out += count, begin += count, left -= count;
    }
  }

  std::string describe() const override {
    return text(files_.size(), files_.size() == 1 ? " file, " : " files, ", tokens_, " tokens, ",
                samples(), " samples of ", sequence_length_);
  }

  std::vector<DataFile> files() const override {
    std::vector<DataFile> all;
    for (const TokenFile& file : files_)
      all.push_back({file.path(), file.count(), file.header().header_hash});
    return all;
  }

 private:
  int64_t sequence_length_, tokens_ = 0;
  std::vector<TokenFile> files_;
  std::vector<int64_t> begins_;  // of each file in the stream of all tokens
};

class Synthetic final : public DataSet {
 public:
  Synthetic(int64_t samples, int64_t sequence_length, int64_t vocab_size, uint64_t seed)
      : samples_(samples), length_(sequence_length), vocab_(vocab_size), seed_(seed) {}
  int64_t samples() const override { return samples_; }
  int64_t sequence_length() const override { return length_; }
  void read(int64_t sample, int64_t* out) const override {
    const RandomKey key = random_key(seed_, "synthetic data", static_cast<uint64_t>(sample));
    const auto word = [&](int64_t position) {
      return philox(key, {static_cast<uint32_t>(position), 0, 0, 0})[0];
    };
    out[0] = word(0) % vocab_;
    for (int64_t i = 1; i <= length_; ++i)
      out[i] = (5 * out[i - 1] + 7 + static_cast<int64_t>(word(i) & 3)) % vocab_;
  }
  std::string describe() const override {
    return text("synthetic, ", samples_, " samples of ", length_);
  }

 private:
  int64_t samples_, length_, vocab_;
  uint64_t seed_;
};

}  // namespace

std::shared_ptr<const DataSet> open_token_files(const std::vector<std::string>& paths,
                                                int64_t sequence_length, int64_t vocab_size) {
  require(!paths.empty(), ExitCode::data, "no token files are given");
  require(sequence_length > 0, ExitCode::usage, "data.sequence_length is ", sequence_length,
          "; it must be 1 or more");
  return std::make_shared<TokenFiles>(paths, sequence_length, vocab_size);
}

std::shared_ptr<const DataSet> synthetic_data(int64_t samples, int64_t sequence_length,
                                              int64_t vocab_size, uint64_t seed) {
  require(samples > 0 && sequence_length > 0 && vocab_size > 0, ExitCode::usage,
          "synthetic data of ", samples, " samples of ", sequence_length, " tokens below ",
          vocab_size, " does not exist; all three must be 1 or more");
  return std::make_shared<Synthetic>(samples, sequence_length, vocab_size, seed);
}

}  // namespace phalanx
