// Files by hand: every rank writes what it likes as a safetensors file, here a statistic of its
// own, and reads another rank's:
//   build/phalanx run --nproc-per-node 2 -- build/examples/example_per_rank_files FOLDER
#include <torch/torch.h>

#include <iostream>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/safetensors.h"
#include "phalanx/comm/world.h"
#include "phalanx/device/dtype.h"

using phalanx::ExitCode;

void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<phalanx::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors)
    infos.push_back({.name = name,
                     .dtype = phalanx::dtype_of(tensor),
                     .shape = tensor.sizes().vec(),
                     .bytes = static_cast<int64_t>(tensor.nbytes())});
  const std::string header = phalanx::safetensors_header(infos, {{"format", "pt"}});
  phalanx::OutputFile file(path, ExitCode::checkpoint);
  file.write(header.data(), static_cast<int64_t>(header.size()));
  for (const auto& [name, tensor] : tensors)
    file.write(tensor.contiguous().const_data_ptr(), static_cast<int64_t>(tensor.nbytes()));
  file.finish();
}

std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const phalanx::InputFile file(path, ExitCode::checkpoint);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& info : phalanx::read_safetensors_header(file)) {
    at::Tensor tensor = torch::empty(info.shape, phalanx::scalar_type(info.dtype));
    file.read(tensor.mutable_data_ptr(), info.bytes, info.offset);
    tensors[info.name] = tensor;
  }
  return tensors;
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "statistics";
  auto world = phalanx::World::join(phalanx::world_from_environment());
  const auto [rank, size] = std::pair(world->info().rank, world->info().size);
  const auto group = phalanx::group_of_all_ranks(*world);

  phalanx::make_folder(folder, ExitCode::checkpoint);
  const auto path = [&](int r) { return folder + "/rank-" + std::to_string(r) + ".safetensors"; };
  write_tensors(path(rank), {{"mean", torch::full({3}, 1.5 * rank)},
                             {"seen", torch::full({}, 10 + rank, torch::kLong)}});
  group->barrier({"files", "written"});
  const auto peer = read_tensors(path((rank + 1) % size));
  const int64_t seen = peer.at("seen").item<int64_t>();
  std::cout << "rank " << rank << " read that its peer had seen " << seen << std::endl;
  return seen == 10 + (rank + 1) % size ? 0 : 1;
}
