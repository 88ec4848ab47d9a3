// A hand-written module whose parameters, gradients and optimizer state are cut over the ranks
// (FSDP); a layer's parameters are whole only while it runs:
//   build/phalanx run --nproc-per-node 2 -- build/examples/example_fsdp
#include <torch/torch.h>

#include <iostream>

#include "phalanx/comm/mesh.h"
#include "phalanx/shard/module.h"

struct NetImpl : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  torch::nn::Linear head{register_module("head", torch::nn::Linear(64, 1))};
  NetImpl() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(i ? 64 : 2, 64)));
  }
  at::Tensor forward(at::Tensor x, phalanx::ShardedModule& sharded) {
    for (auto& layer : layers)
      x = sharded.run(*layer, {x}, [&](auto& in) { return torch::relu(layer(in[0])); });
    return head(x);
  }
};
TORCH_MODULE(Net);

int main() {
  auto world = phalanx::World::join(phalanx::world_from_environment());
  phalanx::Mesh mesh(world, {.dp_shard = world->info().size});
  phalanx::Communicator& group = mesh.group({phalanx::Dim::dp_shard});
  auto device = phalanx::cpu_device();
  at::set_num_threads(1);

  Net net;
  std::vector<torch::nn::Module*> blocks;
  for (auto& layer : net->layers) blocks.push_back(layer.get());
  phalanx::ShardedModule sharded(*net, blocks, phalanx::Layout{}, group, *device);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.003));

  torch::manual_seed(group.rank());
  float loss_value = 0;
  for (int step = 0; step < 300; ++step) {
    auto x = torch::randn({32, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
    sharded.begin();
    auto loss = torch::mse_loss(net->forward(x, sharded), y);
    sharded.backward(loss);
    sharded.clip_gradients(1.0);
    optimizer.step();
    sharded.finish_step();
    loss_value = loss.item<float>();
  }
  if (group.rank() != 0) return 0;
  const bool learned = loss_value < 0.3;
  std::cout << (learned ? "learned" : "did not learn") << ": loss " << loss_value << "\n";
  return learned ? 0 : 1;
}
