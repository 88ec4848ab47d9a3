#include "phalanx/data/batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/data/token_file.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

// Sample i is i * length, i * length + 1 ...: a row's first token names its sample.
class Counting final : public DataSet {
 public:
  Counting(int64_t samples, int64_t length) : samples_(samples), length_(length) {}
  int64_t samples() const override { return samples_; }
  int64_t sequence_length() const override { return length_; }
  void read(int64_t sample, int64_t* out) const override {
    for (int64_t i = 0; i <= length_; ++i) out[i] = sample * length_ + i;
  }
  std::string describe() const override { return "counting"; }

 private:
  int64_t samples_, length_;
};

std::shared_ptr<const DataSet> counting(int64_t samples, int64_t length = 4) {
  return std::make_shared<Counting>(samples, length);
}

// The samples of one step in the order of the global batch, as `ranks` ranks read them.
std::vector<int64_t> step_samples(std::shared_ptr<const DataSet> data, int64_t consumed,
                                  int64_t global, int64_t micro, int ranks) {
  std::vector<int64_t> samples(global, -1);
  for (int rank = 0; rank < ranks; ++rank) {
    const Batches batches(data, {global, micro, ranks, rank}, 11);
    for (int64_t index = 0; index < batches.microbatches(); ++index) {
      const Microbatch batch = batches.microbatch(consumed, index);
      EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({micro, data->sequence_length()}));
      EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
      for (int64_t row = 0; row < micro; ++row) {
        int64_t& sample = samples.at(batch.first_row + row);
        EXPECT_EQ(sample, -1) << "row given twice";
        sample = batch.tokens[row][0].item<int64_t>() / data->sequence_length();
      }
    }
  }
  return samples;
}

std::string error_of(const std::function<void()>& call, ExitCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Batches, DoNotDependOnRanksOrMicroBatch) {
  const auto data = counting(20);
  for (int64_t consumed : {0, 12, 24, 60}) {
    const auto reference = step_samples(data, consumed, 12, 12, 1);
    for (auto [micro, ranks] : {std::pair{1, 1}, {3, 2}, {2, 3}, {1, 4}, {3, 4}, {1, 12}})
      EXPECT_EQ(step_samples(data, consumed, 12, micro, ranks), reference)
          << ranks << " ranks, micro " << micro;
  }
}

// Consumed samples is an absolute count: neither a changed global batch nor changed ranks repeat or
// skip a sample, and all ranks agree on the epoch.
TEST(Batches, GoOnWithAnotherBatchAndOtherRanks) {
  const auto data = counting(25);
  std::vector<int64_t> seen;
  int64_t consumed = 0;
  for (auto [global, micro, ranks, steps] : {std::array{8, 2, 2, 4}, {6, 1, 3, 3}, {5, 5, 1, 5}}) {
    for (int step = 0; step < steps; ++step, consumed += global)
      for (int64_t sample : step_samples(data, consumed, global, micro, ranks))
        seen.push_back(sample);
  }
  ASSERT_EQ(seen.size(), 75u);
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::set<int64_t> samples(seen.begin() + 25 * epoch, seen.begin() + 25 * (epoch + 1));
    EXPECT_EQ(samples.size(), 25u) << "epoch " << epoch;
  }
}

// 10 samples do not divide into steps of 6: an epoch ends within a step, for all ranks alike.
TEST(Batches, AnEpochThatEndsWithinAStepGivesEveryRankAsMuch) {
  const auto data = counting(10);
  std::map<int64_t, int> times;
  std::vector<int64_t> rows(3);
  for (int64_t consumed = 0; consumed < 30; consumed += 6)
    for (int rank = 0; rank < 3; ++rank) {
      const Batches batches(data, {6, 2, 3, rank}, 7);
      ASSERT_EQ(batches.microbatches(), 1);
      const Microbatch batch = batches.microbatch(consumed, 0);
      rows[rank] += batch.tokens.size(0);
      for (int64_t row = 0; row < 2; ++row) ++times[batch.tokens[row][0].item<int64_t>() / 4];
    }
  EXPECT_EQ(rows, (std::vector<int64_t>{10, 10, 10}));
  for (int64_t sample = 0; sample < 10; ++sample) EXPECT_EQ(times[sample], 3) << sample;
}

// 3 epochs of 5 steps, stopped after step 7 in the second epoch: new objects go on with what the
// straight run reads, in the epoch that broke off and in the next.
TEST(Batches, ResumedInALaterEpochReadTheSame) {
  const auto data = counting(10);
  const auto run = [&](int64_t from, int64_t to) {
    const Batches batches(data, {2, 2, 1, 0}, 3);
    std::vector<int64_t> samples;
    for (int64_t step = from; step < to; ++step)
      for (int64_t row = 0; row < 2; ++row)
        samples.push_back(batches.microbatch(step * 2, 0).tokens[row][0].item<int64_t>() / 4);
    return samples;
  };
  const auto straight = run(0, 15);
  auto resumed = run(0, 7);
  const auto rest = run(7, 15);
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  EXPECT_EQ(resumed, straight);
  std::map<int64_t, int> times;
  for (int64_t sample : straight) ++times[sample];
  for (int64_t sample = 0; sample < 10; ++sample) EXPECT_EQ(times[sample], 3) << sample;
  std::set<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch)
    epochs.emplace(straight.begin() + 10 * epoch, straight.begin() + 10 * (epoch + 1));
  EXPECT_EQ(epochs.size(), 3u);
}

TEST(Batches, RefuseWhatCannotBeCut) {
  const auto sentence = error_of([] { Batches(counting(3), {8, 2, 4, 0}, 0); }, ExitCode::data);
  for (const char* fragment :
       {"3 samples", "batch.global = 8", "4 data-parallel ranks", "micro = 2"})
    EXPECT_NE(sentence.find(fragment), std::string::npos) << sentence;
  const auto uneven = error_of([] { Batches(counting(30), {10, 2, 2, 0}, 0); }, ExitCode::usage);
  for (const char* fragment : {"batch.global = 10", "multiple of 4", "use 12"})
    EXPECT_NE(uneven.find(fragment), std::string::npos) << uneven;
  EXPECT_EQ(Batches(counting(8), {8, 2, 4, 0}, 0).counted_tokens(0), 32);
}

TEST(Validation, CountsEverySampleOnceOnAnyNumberOfRanks) {
  for (int64_t samples : {1, 3, 21}) {
    // A "loss" of a token that only depends on it.
    double reference = 0;
    for (int64_t token = 1; token <= samples * 4; ++token) reference += std::sqrt(token);
    for (int ranks : {1, 2, 3, 4})
      for (int64_t micro : {1, 4}) {
        SCOPED_TRACE(::testing::Message()
                     << samples << " samples, " << ranks << " ranks, micro " << micro);
        double loss = 0;
        int64_t counted = 0;
        std::map<int64_t, int> times;
        std::set<int64_t> steps;
        for (int rank = 0; rank < ranks; ++rank) {
          const ValidationBatches batches(counting(samples), micro, ranks, rank);
          steps.insert(batches.steps());
          for (int64_t step = 0; step < batches.steps(); ++step) {
            const Microbatch batch = batches.step(step);
            EXPECT_EQ(batch.tokens.size(0), micro);
            for (int64_t row = 0; row < micro; ++row) {
              if (batch.targets[row][0].item<int64_t>() < 0) continue;
              ++times[batch.tokens[row][0].item<int64_t>() / 4];
              counted += 4;
              for (int64_t i = 0; i < 4; ++i)
                loss += std::sqrt(batch.targets[row][i].item<int64_t>());
            }
          }
          EXPECT_EQ(batches.counted_tokens(), samples * 4);
          EXPECT_EQ(batches.counted_samples(), samples);
        }
        EXPECT_EQ(steps.size(), 1u) << "ranks would wait for each other";
        EXPECT_EQ(counted, samples * 4);
        EXPECT_EQ(static_cast<int64_t>(times.size()), samples);
        for (auto [sample, count] : times) EXPECT_EQ(count, 1) << sample;
        EXPECT_NEAR(loss, reference, 1e-7 * reference);
      }
  }
}

TEST(DataSet, JoinsFilesIntoOneStreamOfWindows) {
  const std::string folder = testing::temporary_folder();
  std::vector<std::string> paths;
  int64_t next = 0;
  for (int64_t count : {7, 1, 30, 2}) {
    std::vector<int64_t> ids(count);
    for (auto& id : ids) id = next++;
    paths.push_back(folder + "/" + std::to_string(count));
    TokenFileWriter writer(paths.back(), "byte", 256);
    writer.add_document(ids);
    writer.finish();
  }
  for (int64_t length : {1, 4, 13, 39}) {
    const auto data = open_token_files(paths, length, 40);
    EXPECT_EQ(data->samples(), 39 / length);
    std::vector<int64_t> out(length + 1);
    for (int64_t sample = 0; sample < data->samples(); ++sample) {
      data->read(sample, out.data());
      for (int64_t i = 0; i <= length; ++i) EXPECT_EQ(out[i], sample * length + i);
    }
  }
  const auto sentence = error_of([&] { open_token_files(paths, 40, 40); }, ExitCode::data);
  for (const char* fragment : {"40 tokens", "needs 41", "3 more files", "sequence_length"})
    EXPECT_NE(sentence.find(fragment), std::string::npos) << sentence;
}

TEST(DataSet, SyntheticFollowsItsRule) {
  const auto data = synthetic_data(50, 32, 97, 1), other = synthetic_data(50, 32, 97, 2);
  std::vector<int64_t> first(33), again(33), different(33);
  std::map<int64_t, int> noise;
  std::set<std::vector<int64_t>> distinct;
  for (int64_t sample = 0; sample < 50; ++sample) {
    data->read(sample, first.data());
    data->read(sample, again.data());
    other->read(sample, different.data());
    EXPECT_EQ(first, again);
    EXPECT_NE(first, different);
    distinct.insert(first);
    for (int64_t i = 1; i <= 32; ++i) ++noise[(first[i] - (5 * first[i - 1] + 7) % 97 + 97) % 97];
  }
  EXPECT_EQ(distinct.size(), 50u);
  EXPECT_EQ(noise.size(), 4u);
  for (auto [value, count] : noise) EXPECT_TRUE(value < 4 && count > 300) << value << " " << count;
}

}  // namespace
}  // namespace phalanx
