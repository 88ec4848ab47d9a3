// Losses are sums over counted tokens, divided once, however unequally the ranks and microbatches
// hold them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "phalanx/base/text.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/parallel/parallelize.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

constexpr int64_t rows = 12, length = 7;
constexpr uint64_t seed = 5;

/// Rows of a global batch whose targets are counted in 7, 0, 1, 0, 0, 2 ... places: whole
/// microbatches and, on three ranks, nearly a whole rank count nothing.
struct Batch {
  at::Tensor tokens, targets;
  int64_t counted = 0;
};

Batch unequal_batch(int64_t vocabulary) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto draw = [&] {
    return at::randint(0, vocabulary, {rows, length}, generator,
                       at::TensorOptions().dtype(at::kLong));
  };
  Batch batch{draw(), draw()};
  const int64_t counts[rows] = {7, 7, 7, 7, 0, 0, 0, 1, 0, 0, 2, 7};
  for (int64_t row = 0; row < rows; ++row) {
    batch.targets[row].narrow(0, counts[row], length - counts[row]).fill_(ignored_target);
    batch.counted += counts[row];
  }
  return batch;
}

struct Expected {
  double loss;
  std::vector<at::Tensor> gradients;  ///< by parameters_of()
};

Expected on_one_rank(const ModelSpec& spec, const Batch& batch) {
  auto model = make_model(spec, at::kDouble);
  allocate_and_initialize(parameters_of(*model), seed);
  const Loss loss =
      forward_loss(*model, batch.tokens, batch.targets, 1.0 / double(batch.counted), {});
  run_backward({loss.scaled}, {at::ones({}, at::kDouble)});
  Expected expected{loss.sum, {}};
  for (const Parameter& parameter : parameters_of(*model))
    expected.gradients.push_back(parameter->tensor.grad().flatten().clone());
  return expected;
}

TEST(CountedTokens, UnequalCountsPerRankAndMicrobatchGiveTheGradientOfTheTokenSum) {
  ModelSpec spec = small_config().model.spec;
  const Batch batch = unequal_batch(spec.vocab_size);
  const Expected expected = on_one_rank(spec, batch);
  for (int ranks : {2, 3})
    run_ranks(ranks, [&](World& world) {
      Mesh mesh(borrowed(world), {.dp_shard = ranks});
      const auto device = cpu_device();
      for (Strategy strategy :
           {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
        for (int64_t microbatches : {int64_t{1}, int64_t{2}, rows / ranks}) {
          SCOPED_TRACE(text(name(strategy), ", ", microbatches, " microbatches"));
          Layout layout;
          layout.strategy = strategy;
          layout.compute = layout.master = layout.reduce_dtype = Dtype::float64;
          layout.degree.dp_shard = ranks;
          ParallelModel model(make_model(spec, at::kDouble), layout, {.seed = seed}, mesh, *device);
          const int64_t share = rows / ranks, micro = share / microbatches;
          double loss = 0;
          for (int64_t i = 0; i < microbatches; ++i) {
            const int64_t first = world.info().rank * share + i * micro;
            loss += model.train({batch.tokens.narrow(0, first, micro),
                                 batch.targets.narrow(0, first, micro), first},
                                1.0 / double(batch.counted), 0, i + 1 == microbatches);
          }
          model.engine().wait_gradients();
          at::Tensor total = at::full({1}, loss, at::kDouble);
          data_parallel_group(mesh).all_reduce(total, Op::sum, {"test", "loss"}).wait();
          EXPECT_NEAR(total.item<double>(), expected.loss, 1e-12 * expected.loss);
          size_t index = 0;
          for (const ParameterShard& shard : model.engine().shards()) {
            const at::Tensor part =
                expected.gradients[index++].slice(0, shard.range.begin, shard.range.end);
            if (!shard.range.empty())
              EXPECT_LT((shard.gradient - part).norm().item<double>(),
                        1e-12 * (1e-3 + part.norm().item<double>()))
                  << shard.parameter->spec.name;
          }
          model.engine().finish_step();
          model.engine().wait_gradients();
          data_parallel_group(mesh).barrier({"end", "test"});
        }
    });
}

}  // namespace
}  // namespace phalanx::testing
