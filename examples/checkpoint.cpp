// A hand-written module and its optimizer, saved as shards and resumed on any number of ranks; and
// the same state in one module on every rank, as an evaluation would load it:
//   build/phalanx run --nproc-per-node 2 -- build/examples/example_checkpoint FOLDER
//   build/phalanx run --nproc-per-node 3 -- build/examples/example_checkpoint FOLDER
#include <torch/torch.h>

#include <iostream>

#include "phalanx/comm/mesh.h"
#include "phalanx/shard/module_state.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(2, 64))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(64, 1))};
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "checkpoints";
  auto world = phalanx::World::join(phalanx::world_from_environment());
  phalanx::Mesh mesh(world, {.dp_shard = world->info().size});
  phalanx::Communicator& group = mesh.group({phalanx::Dim::dp_shard});
  auto device = phalanx::cpu_device();
  at::set_num_threads(1);

  Net net;
  phalanx::ShardedModule sharded(*net, {net->first.get(), net->second.get()}, {}, group, *device);
  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));

  // Goes on from the newest checkpoint, whatever the number of ranks that wrote it.
  int64_t step = 0;
  phalanx::prepare_checkpoints(group, folder);
  if (const auto newest = phalanx::newest_checkpoint(group, folder))
    step = phalanx::load_module(group, *newest, sharded, &optimizer).step;
  const int64_t end = step + 100;
  for (; step < end; ++step) {
    torch::manual_seed(1000 * step + group.rank());
    auto x = torch::randn({32, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
    sharded.begin();
    auto h =
        sharded.run(*net->first, {x}, [&](auto& in) { return torch::relu(net->first(in[0])); });
    h = sharded.run(*net->second, {h}, [&](auto& in) { return net->second(in[0]); });
    sharded.backward(torch::mse_loss(h, y));
    optimizer.step();
    sharded.finish_step();
  }
  const std::string saved = phalanx::save_checkpoint(group, folder, {.step = step},
                                                     phalanx::module_state(sharded, &optimizer), 2);

  // A plain module, without the optimizer's state.
  Net whole;
  phalanx::load_module(group, saved, *whole, nullptr, {.roles = {"parameter"}});
  torch::NoGradGuard no_grad;
  auto x = torch::randn({1000, 2}), y = (x.select(1, 0) * x.select(1, 1)).unsqueeze(1);
  auto loss = torch::mse_loss(whole->second(torch::relu(whole->first(x))), y);
  if (group.rank() == 0)
    std::cout << "step " << step << ": loss " << loss.item<float>() << ", saved " << saved << "\n";
}
