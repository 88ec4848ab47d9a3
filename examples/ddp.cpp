// A hand-written module, trained by every rank on its own samples, gradients summed (DDP):
//   build/phalanx run --nproc-per-node 2 -- build/examples/example_ddp
#include <torch/torch.h>

#include <iostream>

#include "phalanx/comm/mesh.h"
#include "phalanx/shard/module.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(2, 64))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(64, 1))};
};
TORCH_MODULE(Net);

int main() {
  auto world = phalanx::World::join(phalanx::world_from_environment());
  phalanx::Mesh mesh(world, {.dp_shard = world->info().size});
  phalanx::Communicator& group = mesh.group({phalanx::Dim::dp_shard});
  auto device = phalanx::cpu_device();
  at::set_num_threads(1);

  Net net;
  phalanx::Layout layout{.strategy = phalanx::Strategy::none};
  phalanx::ShardedModule sharded(*net, {net->first.get(), net->second.get()}, layout, group,
                                 *device);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));

  torch::manual_seed(group.rank());
  float loss_value = 0;
  for (int step = 0; step < 200; ++step) {
    auto x = torch::randn({32, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
    sharded.begin();
    auto h =
        sharded.run(*net->first, {x}, [&](auto& in) { return torch::relu(net->first(in[0])); });
    h = sharded.run(*net->second, {h}, [&](auto& in) { return net->second(in[0]); });
    auto loss = torch::mse_loss(h, y);
    sharded.backward(loss);
    optimizer.step();
    sharded.finish_step();
    loss_value = loss.item<float>();
  }
  if (group.rank() != 0) return 0;
  const bool learned = loss_value < 0.3;
  std::cout << (learned ? "learned" : "did not learn") << ": loss " << loss_value << "\n";
  return learned ? 0 : 1;
}
