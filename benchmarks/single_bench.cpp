// One rank, no engine: forward, backward and AdamW of GPT-2, to set beside
// `torch_train.py --strategy single`. single_bench SIZE [BATCH [STEPS [THREADS]]], SIZE one of
// tiny, wide, small. Prints one JSON line.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "phalanx/autograd/op.h"
#include "phalanx/device/memory.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/optim/optimizer.h"

namespace phalanx {
namespace {

struct Size {
  const char* name;
  int64_t layers, hidden, heads, vocabulary, sequence, batch;
};
constexpr Size sizes[] = {{"tiny", 6, 384, 6, 256, 256, 8},
                          {"wide", 4, 1024, 16, 8192, 512, 4},
                          {"small", 12, 768, 12, 50304, 512, 2}};

ModelSpec spec_of(const Size& size) {
  ModelSpec spec;
  spec.hidden_size = size.hidden;
  spec.num_hidden_layers = size.layers;
  spec.num_attention_heads = spec.num_key_value_heads = size.heads;
  spec.intermediate_size = 4 * size.hidden;
  spec.vocab_size = size.vocabulary;
  spec.max_position_embeddings = size.sequence;
  return spec;
}

// Gradients that stay allocated from step to step, as an engine's do.
struct KeptGradients : GradientSlot {
  std::vector<at::Tensor> gradients;
  std::vector<char> written;
  explicit KeptGradients(const std::vector<Parameter>& parameters)
      : written(parameters.size(), false) {
    for (const Parameter& parameter : parameters) {
      parameter->index = int(gradients.size());
      parameter->slot = this;
      gradients.push_back(at::zeros_like(parameter->tensor.detach()));
    }
  }
  Target target(const ParameterState& parameter) override {
    const bool accumulate = std::exchange(written[size_t(parameter.index)], true);
    return {gradients[size_t(parameter.index)], accumulate};
  }
};

// CPU time of this process in milliseconds: on a busy machine the one to compare.
double cpu_milliseconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return 1e3 * double(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         1e-3 * double(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

// Learnable: t' = 5 t + 7 + noise in [0, 3].
at::Tensor synthetic(const Size& size, int64_t batch, int64_t step) {
  at::Tensor tokens = at::empty({batch, size.sequence + 1}, at::kLong);
  uint64_t state = uint64_t(step) * 977 + 1;
  auto next = [&] {
    return state = state * 6364136223846793005u + 1442695040888963407u, state >> 33;
  };
  for (int64_t row = 0; row < batch; ++row) {
    int64_t* t = tokens.mutable_data_ptr<int64_t>() + row * (size.sequence + 1);
    t[0] = int64_t(next() % uint64_t(size.vocabulary));
    for (int64_t i = 1; i <= size.sequence; ++i)
      t[i] = (t[i - 1] * 5 + 7 + int64_t(next() % 4)) % size.vocabulary;
  }
  return tokens;
}

void run(const Size& size, int64_t batch, int steps) {
  auto model = make_model(spec_of(size), at::kFloat);
  const std::vector<Parameter> parameters = parameters_of(*model);
  allocate_and_initialize(parameters, 0);
  KeptGradients gradients(parameters);
  std::vector<OptimizerShard> shards;
  for (const Parameter& p : parameters)
    shards.push_back({p->tensor.detach(), gradients.gradients[size_t(p->index)], p->spec.decay});
  auto optimizer = make_adamw({}, shards);
  std::vector<double> milliseconds, cpu, losses;
  const int warmup = 3;
  for (int step = 0; step < warmup + steps; ++step) {
    const at::Tensor data = synthetic(size, batch, step);
    const at::Tensor tokens = data.narrow(1, 0, size.sequence).contiguous();
    const at::Tensor targets = data.narrow(1, 1, size.sequence).contiguous();
    const double cpu_start = cpu_milliseconds();
    const auto start = std::chrono::steady_clock::now();
    const Loss loss = forward_loss(*model, tokens, targets, 1.0 / double(targets.numel()), {});
    run_backward({loss.scaled}, {at::ones({}, at::kDouble)});
    optimizer->step(shards, 3e-4);
    std::fill(gradients.written.begin(), gradients.written.end(), false);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (step >= warmup) milliseconds.push_back(took.count());
    if (step >= warmup) cpu.push_back(cpu_milliseconds() - cpu_start);
    losses.push_back(loss.sum / double(loss.counted));
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  std::sort(cpu.begin(), cpu.end());
  const double median = milliseconds[milliseconds.size() / 2];
  const double tokens = double(batch * size.sequence);
  std::printf(
      "{\"stack\": \"phalanx\", \"strategy\": \"single\", \"model\": \"gpt2-%s\", \"threads\": %d, "
      "\"tokens_per_s\": %.1f, \"tokens_per_s_best\": %.1f, \"step_ms_median\": %.2f, "
      "\"step_ms_min\": %.2f, \"own_cpu_ms_median\": %.1f, \"loss_first\": %.4f, \"loss_last\": "
      "%.4f}\n",
      size.name, at::get_num_threads(), tokens / median * 1e3, tokens / milliseconds[0] * 1e3,
      median, milliseconds[0], cpu[cpu.size() / 2], losses.front(), losses.back());
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) {
  phalanx::keep_freed_memory();
  const std::string name = argc > 1 ? argv[1] : "tiny";
  at::set_num_threads(argc > 4 ? std::atoi(argv[4]) : 2);
  for (const auto& size : phalanx::sizes)
    if (name == size.name) {
      phalanx::run(size, argc > 2 ? std::atoll(argv[2]) : size.batch,
                   argc > 3 ? std::atoi(argv[3]) : 10);
      return 0;
    }
  std::fprintf(stderr, "single_bench: no size '%s'; use tiny, wide or small\n", name.c_str());
  return 2;
}
