#include <charconv>
#include <cstdlib>
#include <optional>

#include "phalanx/base/error.h"
#include "phalanx/comm/world.h"

namespace phalanx {
namespace {

std::optional<int> number_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (!value || !*value) return std::nullopt;
  const std::string_view digits(value);
  int number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  const bool large = error == std::errc::result_out_of_range;
  require(error == std::errc() && end == digits.end() && number >= 0, ExitCode::environment,
          "the environment variable ", variable, " is '", digits, "', which is ",
          large ? "too large" : "not a number", "; unset it, or set it as the launcher does");
  return number;
}

struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
  const char *job = nullptr, *step = nullptr;  // what tells two runs apart
};
constexpr Names launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_ess_base_jobid"},
    // MPICH's and Intel's, before srun, with which they may start their own helpers.
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
};

// Tasks of each node, written as "2(x3),1": three nodes of two, one of one. 0 if `node` is not
// among them, or it is written otherwise.
int tasks_of_node(std::string_view list, int node) {
  const char *at = list.data(), *const end = at + list.size();
  const auto number = [&](int& value) {
    const auto [stop, error] = std::from_chars(at, end, value);
    at = stop;
    return error == std::errc() && value > 0;
  };
  const auto skip = [&](std::string_view word) {
    if (!std::string_view(at, size_t(end - at)).starts_with(word)) return false;
    at += word.size();
    return true;
  };
  do {
    int tasks = 0, nodes = 1;
    if (!number(tasks)) return 0;
    if (skip("(x") && !(number(nodes) && skip(")"))) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  } while (skip(","));
  return 0;
}

int slurm_local_size(const WorldInfo& info) {
  const char* list = std::getenv("SLURM_STEP_TASKS_PER_NODE");
  const auto node = number_of("SLURM_NODEID");
  if (list && node) {
    const int tasks = tasks_of_node(list, *node);
    require(tasks > 0, ExitCode::environment, "srun's SLURM_STEP_TASKS_PER_NODE is '", list,
            "', which says nothing of node ", *node, " (SLURM_NODEID); it is like '2(x3),1'");
    return tasks;
  }
  const int nodes = std::max(1, number_of("SLURM_NNODES").value_or(1));
  require(info.size % nodes == 0, ExitCode::environment, "srun started ", info.size, " tasks on ",
          nodes,
          " nodes without SLURM_STEP_TASKS_PER_NODE and SLURM_NODEID, which say how many "
          "are on this one; set them, or start equally many on each (--ntasks-per-node)");
  return info.size / nodes;
}

// All ranks of a job must come to the same port, and two jobs to two ports.
int derived_port(const Names& names) {
  uint32_t id = 0;
  for (const char* name : {names.job, names.step}) {
    id *= 31;
    for (const char* letter = name ? std::getenv(name) : nullptr; letter && *letter; ++letter)
      id = id * 31 + uint32_t(*letter);
  }
  require(id != 0, ExitCode::environment, names.launcher, " started ", names.rank,
          " without MASTER_PORT and without a job number to derive one from; set MASTER_PORT to a "
          "free port, the same for all ranks");
  return int(20000 + id % 12000);  // below the range that the system gives to clients
}

void check(const WorldInfo& info, const Names& names) {
  const auto refuse = [&](const char* what, int value, const char* limit, int bound) {
    fail(ExitCode::environment, names.launcher, "'s environment contradicts itself: ", what, " is ",
         value, " and ", limit, " is ", bound,
         "; start all ranks with one launcher, and unset what another one has left");
  };
  if (info.size < 1) refuse(names.size, info.size, "the least", 1);
  if (info.rank >= info.size) refuse(names.rank, info.rank, names.size, info.size);
  if (info.local_size < 1 || info.local_size > info.size)
    refuse("the number of local ranks", info.local_size, names.size, info.size);
  if (info.local_rank >= info.local_size)
    refuse(names.local_rank, info.local_rank, "the number of local ranks", info.local_size);
}

}  // namespace

WorldInfo world_from_environment() {
  for (const Names& names : launchers) {
    const auto rank = number_of(names.rank), size = number_of(names.size);
    if (!rank && !size) continue;
    // Other programs set PMI_RANK, too: srun, with ranks of its own, and launchers that say nothing
    // of hosts.
    if (std::string_view(names.rank) == "PMI_RANK" && !std::getenv(names.local_rank)) continue;
    // A batch script and a shell of Slurm's are a task of their own, whatever SLURM_NTASKS says:
    // only of srun's tasks there are several.
    if (std::string_view(names.launcher) == "srun" && (!rank || size.value_or(1) == 1)) continue;
    require(rank && size, ExitCode::environment, "the environment has ",
            rank ? names.rank : names.size, " and no ", rank ? names.size : names.rank,
            "; set both or neither");
    WorldInfo info{.rank = *rank, .size = *size};
    const bool slurm = names.local_size == nullptr;
    const auto local_size =
        slurm ? std::optional(slurm_local_size(info)) : number_of(names.local_size);
    const auto local_rank = number_of(names.local_rank);
    info.local_size = local_size.value_or(local_rank ? info.size : 1);
    info.local_rank = local_rank.value_or(0);
    check(info, names);
    if (info.size == 1) return info;
    const char* address = std::getenv("MASTER_ADDR");
    const int nodes = number_of("SLURM_NNODES").value_or(1);
    require((address && *address) || (info.local_size == info.size && nodes <= 1),
            ExitCode::environment, names.launcher, " started ", info.size,
            " ranks on several hosts without MASTER_ADDR; set it to the address of rank 0's host");
    if (address && *address) info.master_address = address;
    const auto port = number_of("MASTER_PORT");
    info.master_port = port ? *port : derived_port(names);
    require(info.master_port > 0 && info.master_port < 65536, ExitCode::environment,
            "MASTER_PORT is ", info.master_port, "; it must be between 1 and 65535");
    return info;
  }
  require(number_of("PMI_SIZE").value_or(1) <= 1, ExitCode::environment,
          "the environment has PMI_SIZE=", std::getenv("PMI_SIZE"),
          " of a launcher that does not set MPI_LOCALRANKID; set RANK, WORLD_SIZE, LOCAL_RANK, "
          "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process, or unset PMI_SIZE for "
          "separate runs");
  return {};
}

}  // namespace phalanx
