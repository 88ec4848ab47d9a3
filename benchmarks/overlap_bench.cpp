// How much of slow links hides behind compute: 16 blocks of GPT-2, and every gather and reduction
// complete only one block's forward time after it was issued.
//
//   phalanx run --nproc-per-node 2 -- build/overlap_bench
//
// One JSON line per strategy: the share of the summed delays that the step had to wait for.
#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <iostream>
#include <numeric>

#include "phalanx/base/error.h"
#include "phalanx/comm/delayed.h"
#include "phalanx/comm/world.h"
#include "phalanx/device/device.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/shard/data_parallel.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

ModelSpec model_spec() {
  ModelSpec spec;
  spec.hidden_size = 256, spec.intermediate_size = 1024, spec.num_hidden_layers = 16,
  spec.num_attention_heads = spec.num_key_value_heads = 4;
  spec.vocab_size = 256, spec.max_position_embeddings = 128;
  spec.embd_pdrop = spec.attn_pdrop = spec.resid_pdrop = 0;
  return spec;
}

std::unique_ptr<Communicator> everyone(World& world, const std::string& name) {
  std::vector<int> ranks(world.info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(name, ranks);
}

/// One training step without an optimizer; returns the seconds that all blocks' forwards took.
double step(Model& model, DataParallel& engine) {
  const at::Tensor tokens = at::zeros({4, 128}, at::kLong);
  double forward = 0;
  engine.begin_microbatch(true);
  Tensors hidden = model.embed(tokens, {});
  for (int i = 0; i < model.block_count(); ++i)
    hidden = engine.run(i + 1, hidden, [&](const Tensors& in) {
      const auto start = Clock::now();
      Tensors out = model.block(i).forward(in, {});
      forward += std::chrono::duration<double>(Clock::now() - start).count();
      return out;
    });
  const Loss loss = model.loss(hidden, tokens, 1e-3, {});
  run_backward({loss.scaled}, {at::ones({}, loss.scaled.options())});
  engine.end_microbatch();
  engine.wait_gradients();
  engine.finish_step();
  return forward;
}

void measure(World& world, Strategy strategy, int prefetch) {
  static int serial = 0;
  auto device = cpu_device();
  auto model = make_model(model_spec(), at::kFloat);
  std::vector<UnitParameters> units = {{"root", model->root_parameters()}};
  for (int i = 0; i < model->block_count(); ++i)
    units.push_back({text("blocks.", i), model->block(i).parameters()});
  Layout layout;
  layout.strategy = strategy, layout.prefetch = prefetch;
  auto plain = everyone(world, text("overlap", serial++));
  // The delay: a block's forward, on the slower rank.
  static double block_seconds = 0;
  DelayedCommunicator group(std::move(plain),
                            std::chrono::nanoseconds(static_cast<int64_t>(block_seconds * 1e9)));
  DataParallel engine(
      layout, group, *device, units,
      [](const Parameter& parameter, int64_t begin, int64_t end, const at::Tensor& out) {
        initialize(parameter->spec, 0, begin, end, out);
      });
  step(*model, engine);
  if (block_seconds == 0) {
    at::Tensor slowest = at::zeros({1}, at::kDouble);
    *slowest.mutable_data_ptr<double>() = step(*model, engine) / model->block_count();
    group.all_reduce(slowest, Op::max, {"block", "bench"}).wait();
    block_seconds = *slowest.const_data_ptr<double>();
    engine.wait_gradients();
    return;
  }
  engine.wait_gradients();
  group.reset();
  for (int i = 0; i < 5; ++i) step(*model, engine);
  engine.wait_gradients();
  const DelayRecord record = group.record();
  group.barrier({"end", "bench"});
  if (world.info().rank == 0)
    std::cout << "{\"strategy\": \"" << name(strategy) << "\", \"prefetch\": " << prefetch
              << ", \"blocks\": " << model->block_count()
              << ", \"delay_ms\": " << 1e3 * block_seconds << ", \"calls\": " << record.calls
              << ", \"exposed_share\": " << 1 - record.hidden_share() << "}" << std::endl;
}

}  // namespace
}  // namespace phalanx

int main() try {
  using namespace phalanx;
  at::set_num_threads(1);
  auto world = World::join(world_from_environment());
  measure(*world, Strategy::optim_grads_params, 1);  // finds the delay
  for (Strategy strategy : {Strategy::none, Strategy::optim, Strategy::optim_grads})
    measure(*world, strategy, 1);
  for (int prefetch : {0, 1, 2}) measure(*world, Strategy::optim_grads_params, prefetch);
  return 0;
} catch (const phalanx::Error& error) {
  std::cerr << "overlap_bench: " << error.what() << "\n";
  return static_cast<int>(error.code());
}
