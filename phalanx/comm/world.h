#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// Which of the run's processes this is, as torchrun's environment says (RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; those of Open MPI's, MPICH's and Intel's
/// mpirun and of srun too).
struct WorldInfo {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
};

/// One process without a launcher gives rank 0 of 1. Contradictions are errors (environment).
WorldInfo world_from_environment();

enum class Transport { automatic, shared_memory, gloo };

struct WorldOptions {
  Transport transport = Transport::automatic;
  std::chrono::milliseconds deadline{std::chrono::minutes(5)};
  std::chrono::milliseconds join_deadline{std::chrono::minutes(2)};  ///< all ranks have come
  /// Compare a fingerprint of every collective call on transports that do not by nature.
  bool debug = false;
};

class Ledger;

/// The processes of a run, joined: where every group comes from. One per process.
class World {
 public:
  /// Meets the other ranks through the store at master_address:master_port. Throws Error(peer_lost)
  /// that names the ranks that never joined, or Error(environment) for a port that is in use or a
  /// store that can't be reached.
  static std::shared_ptr<World> join(const WorldInfo&, const WorldOptions& = {});
  virtual ~World() = default;

  virtual const WorldInfo& info() const = 0;
  /// A communicator of the given world ranks (ascending, this rank among them), which must not
  /// outlive this World. Members only; same order of calls and the same name on all of them. A name
  /// may come again, as with a second Mesh: the ledger adds up what groups of one name received.
  virtual std::unique_ptr<Communicator> group(std::string name, std::span<const int> ranks) = 0;
  virtual Ledger& ledger() = 0;
  virtual const WorldOptions& options() const = 0;
};

/// All ranks of a run. Collective.
std::unique_ptr<Communicator> group_of_all_ranks(World& world, std::string name = "world");

}  // namespace phalanx
