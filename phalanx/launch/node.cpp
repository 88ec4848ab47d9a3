#include "phalanx/launch/node.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <fstream>

namespace phalanx {

int available_cores() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  int cores = sched_getaffinity(0, sizeof(mask), &mask) == 0
                  ? CPU_COUNT(&mask)
                  : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  double quota = 0, period = 0;  // "max 100000" where there is no quota
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period && period > 0)
    cores = std::min(cores, static_cast<int>(std::ceil(quota / period)));
  return std::max(cores, 1);
}

Listener listen_on(int port) {
  Listener listener{Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), port};
  const int on = 1;
  setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  const bool listening = bind(listener.socket.get(), generic, length) == 0 &&
                         listen(listener.socket.get(), SOMAXCONN) == 0 &&
                         getsockname(listener.socket.get(), generic, &length) == 0;
  require(listening || errno != EADDRINUSE, ExitCode::environment, "port ", port,
          " is in use on this machine; give another --master-port, or none to take a free one");
  require(listening, ExitCode::environment, "cannot listen on port ", port,
          " of the loopback interface: ", std::strerror(errno));
  listener.port = ntohs(address.sin_port);
  return listener;
}

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
                                              "SLURM_PROCID",
                                              "SLURM_LOCALID",
                                              "SLURM_NTASKS",
                                              "SLURM_NPROCS",
                                              "TORCHELASTIC_USE_AGENT_STORE",
                                              "PHALANX_MASTER_FD"};
  return names;
}

}  // namespace phalanx
