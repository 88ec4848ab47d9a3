#include "phalanx/comm/mesh.h"

#include "phalanx/base/error.h"

namespace phalanx {

Mesh::Mesh(std::shared_ptr<World> world, const Degrees& degrees)
    : world_(std::move(world)), degrees_(degrees) {
  require(degrees_.world() == world_->info().size, ExitCode::usage,
          "the degrees pp x dp_replicate x dp_shard x cp x tp make ", degrees_.world(),
          " ranks, and the world has ", world_->info().size);
}

Communicator& Mesh::group(Dims dims) {
  auto& group = groups_[dims];
  if (group) return *group;
  const auto ranks = group_ranks(degrees_, world_->info().rank, dims);
  group = ranks.size() == 1 ? single_communicator(dims.name()) : world_->group(dims.name(), ranks);
  return *group;
}

int Mesh::coordinate(Dim dim) const {
  return phalanx::coordinate(degrees_, world_->info().rank, dim);
}

}  // namespace phalanx
