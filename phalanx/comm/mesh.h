#pragma once

#include <map>
#include <memory>

#include "phalanx/comm/world.h"
#include "phalanx/spec/layout.h"

namespace phalanx {

/// The world arranged in the dimensions of a layout. Groups are made on first use, so the first use
/// of each must come in the same order on all of its members.
class Mesh {
 public:
  Mesh(std::shared_ptr<World> world, const Degrees& degrees);
  Communicator& group(Dims dims);  ///< folded; of one rank where all degrees are 1
  int coordinate(Dim dim) const;
  const Degrees& degrees() const { return degrees_; }
  World& world() { return *world_; }

 private:
  std::shared_ptr<World> world_;
  Degrees degrees_;
  std::map<Dims, std::unique_ptr<Communicator>> groups_;
};

}  // namespace phalanx
