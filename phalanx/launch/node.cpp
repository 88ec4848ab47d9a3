#include "phalanx/launch/node.h"

#include <sys/resource.h>

#include "phalanx/base/error.h"

namespace phalanx {

void require_descriptors(int needed, const std::string& what_for) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(needed))
    return;
  require(limit.rlim_max >= static_cast<rlim_t>(needed), ExitCode::environment, what_for, " needs ",
          needed, " open files and the limit is ", limit.rlim_max, "; raise it with ulimit -n ",
          needed);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Environment rank_environment(int rank, int ranks, int master_port) {
  const std::string own = std::to_string(rank), all = std::to_string(ranks);
  return {{"RANK", own},
          {"WORLD_SIZE", all},
          {"LOCAL_RANK", own},
          {"LOCAL_WORLD_SIZE", all},
          {"GROUP_RANK", "0"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(master_port)}};
}

const std::vector<std::string>& foreign_variables() {
  static const std::vector<std::string> names{"OMPI_COMM_WORLD_RANK",
                                              "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_RANK",
                                              "OMPI_COMM_WORLD_LOCAL_SIZE",
                                              "OMPI_COMM_WORLD_NODE_RANK",
                                              "PMI_RANK",
                                              "PMI_SIZE",
                                              "MPI_LOCALRANKID",
                                              "MPI_LOCALNRANKS",
                                              "SLURM_PROCID",
                                              "SLURM_LOCALID",
                                              "SLURM_NTASKS",
                                              "SLURM_STEP_NUM_TASKS",
                                              "SLURM_NPROCS",
                                              "TORCHELASTIC_USE_AGENT_STORE",
                                              "PHALANX_MASTER_FD"};
  return names;
}

}  // namespace phalanx
