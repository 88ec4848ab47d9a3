// A training loop that outlives what happens to it: it goes on from the newest checkpoint, saves
// every 10 steps and on SIGTERM, and checks that every sample was seen once:
//   build/phalanx run --nproc-per-node 2 -- build/examples/example_fault_tolerant FOLDER STEPS
#include <torch/torch.h>

#include <iostream>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/launch/signals.h"
#include "phalanx/shard/module_state.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(2, 64))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(64, 1))};
};
TORCH_MODULE(Net);

constexpr int64_t batch = 48;  // samples per step, over all ranks, which may differ by one

// Sample `index` of the data, the same whoever asks.
at::Tensor sample(int64_t index) {
  return torch::tensor({std::sin(1.7 * double(index)), std::cos(2.3 * double(index))});
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "checkpoints";
  const int64_t steps = argc > 2 ? std::stoll(argv[2]) : 100;
  auto world = phalanx::World::join(phalanx::world_from_environment());
  phalanx::Mesh mesh(world, {.dp_shard = world->info().size});
  phalanx::Communicator& group = mesh.group({phalanx::Dim::dp_shard});
  auto device = phalanx::cpu_device();
  at::set_num_threads(1);
  torch::manual_seed(1);

  Net net;
  phalanx::ShardedModule sharded(*net, {net->first.get(), net->second.get()}, {}, group, *device);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));
  phalanx::install_signals();

  phalanx::RunState run{.values = {{"sum_of_samples", int64_t{0}}}};
  phalanx::Checkpointer checkpointer(group, folder, {.keep = 2, .async = true});
  if (const auto newest = phalanx::newest_checkpoint(group, folder))
    run = phalanx::load_module(group, *newest, sharded, &optimizer);
  checkpointer.warn_of_later(run.step);
  if (group.rank() == 0) std::cout << "after step " << run.step << std::endl;
  bool stop = false;
  while (run.step < steps && !stop) {
    std::vector<at::Tensor> rows;
    int64_t sum = 0;
    const int64_t first = run.consumed_samples + batch * group.rank() / group.size(),
                  end = run.consumed_samples + batch * (group.rank() + 1) / group.size();
    for (int64_t i = first; i < end; ++i) rows.push_back(sample(i)), sum += i;
    auto x = torch::stack(rows), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
    sharded.begin();
    auto h =
        sharded.run(*net->first, {x}, [&](auto& in) { return torch::relu(net->first(in[0])); });
    h = sharded.run(*net->second, {h}, [&](auto& in) { return net->second(in[0]); });
    sharded.backward(torch::mse_loss(h, y, at::Reduction::Sum), 1.0 / batch);
    optimizer.step();
    sharded.finish_step();

    ++run.step, run.consumed_samples += batch;
    auto told = torch::tensor({sum, int64_t{phalanx::stop_requested()}}, torch::kLong);
    group.all_reduce(told, phalanx::Op::sum, {"loop", "samples"}).wait();
    std::get<int64_t>(run.values["sum_of_samples"]) += told[0].item<int64_t>();
    stop = told[1].item<int64_t>() != 0;
    checkpointer.poll();
    if (run.step % 10 == 0 || run.step == steps || stop)
      checkpointer.save(run, phalanx::module_state(sharded, &optimizer));
  }
  checkpointer.finish();
  const int64_t seen = run.consumed_samples, sum = std::get<int64_t>(run.values["sum_of_samples"]);
  if (group.rank() == 0 && !stop)
    std::cout << (sum == seen * (seen - 1) / 2 ? "every sample was seen once" : "samples were lost")
              << ": " << seen << std::endl;
  return stop ? static_cast<int>(phalanx::ExitCode::interrupted) : 0;
}
