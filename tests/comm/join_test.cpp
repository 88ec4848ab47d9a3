#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "phalanx/comm/mesh.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Sets variables for its lifetime; all that launchers set are cleared first.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& variables) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
          "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_ess_base_jobid", "SLURM_PROCID", "SLURM_NTASKS",
          "SLURM_LOCALID", "SLURM_NNODES", "SLURM_JOB_ID", "SLURM_STEP_ID"})
      unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    names_ = variables;
  }
  ~Environment() {
    for (const auto& [name, value] : names_) unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> names_;
};

TEST(Join, ReadsTheEnvironmentOfLaunchers) {
  {
    Environment none({});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 0);
    EXPECT_EQ(info.size, 1);
  }
  {
    Environment torchrun({{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"}});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 5);
    EXPECT_EQ(info.size, 8);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.local_size, 4);
    EXPECT_EQ(info.master_address, "node1");
    EXPECT_EQ(info.master_port, 29500);
  }
  {
    Environment mpirun({{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_MCA_ess_base_jobid", "3298885633"}});
    const auto info = world_from_environment();
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.master_address, "127.0.0.1");
    EXPECT_GT(info.master_port, 1024);
    EXPECT_EQ(world_from_environment().master_port, info.master_port);
  }
  const std::map<std::string, std::string> slurm{{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                                                 {"SLURM_LOCALID", "1"}, {"SLURM_NNODES", "2"},
                                                 {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};
  {
    Environment srun(slurm);
    expect_error(ExitCode::environment, {"srun", "MASTER_ADDR", "several hosts"},
                 [] { world_from_environment(); });
    setenv("MASTER_ADDR", "10.0.0.1", 1);
    const auto info = world_from_environment();
    unsetenv("MASTER_ADDR");
    EXPECT_EQ(info.rank, 3);
    EXPECT_EQ(info.local_size, 2);
    EXPECT_GT(info.master_port, 1024);
  }
  {
    Environment batch({{"SLURM_NTASKS", "4"}});
    EXPECT_EQ(world_from_environment().size, 1);
  }
}

TEST(Join, ContradictionsAreErrors) {
  const auto refuse = [](const std::map<std::string, std::string>& variables,
                         const std::vector<std::string>& fragments) {
    Environment environment(variables);
    expect_error(ExitCode::environment, fragments, [] { world_from_environment(); });
  };
  refuse({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, {"RANK is 2", "WORLD_SIZE is 2"});
  refuse({{"RANK", "0"}}, {"RANK", "no WORLD_SIZE"});
  refuse({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, {"RANK is 'x'", "not a number"});
  refuse({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
         {"LOCAL_RANK is 2"});
  refuse({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}},
         {"MASTER_PORT", "set"});
  refuse({{"OMPI_COMM_WORLD_RANK", "0"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
         {"mpirun", "MASTER_PORT"});
}

int listening_socket(int* port) {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(made, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(listen(made, 16), 0);
  getsockname(made, reinterpret_cast<sockaddr*>(&address), &length);
  *port = ntohs(address.sin_port);
  return made;
}

TEST(Join, PortInUseIsOneSentence) {
  auto statuses = fork_ranks(1, [](const WorldInfo& info) {
    int port = 0;
    const int busy = listening_socket(&port);
    WorldInfo other{.rank = 0, .size = 2, .local_size = 2, .master_port = port};
    expect_error(ExitCode::environment, {text("port ", port), "is in use", "MASTER_PORT"},
                 [&] { World::join(other, {.join_deadline = seconds(5)}); });
    close(busy);
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(Join, RanksThatNeverComeAreNamed) {
  auto statuses = fork_ranks(4, [](const WorldInfo& info) {
    if (info.rank % 2 == 1) return 0;
    const auto begin = std::chrono::steady_clock::now();
    expect_error(ExitCode::environment, {"4 ranks", "did not join", "1, 3"},
                 [&] { World::join(info, {.join_deadline = milliseconds(1500)}); });
    EXPECT_LT(seconds_since(begin), 6);
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
  statuses = fork_ranks(2, [](const WorldInfo& info) {
    if (info.rank == 0) return 0;
    expect_error(ExitCode::environment, {"rank 1", "cannot reach rank 0", "127.0.0.1"},
                 [&] { World::join(info, {.join_deadline = milliseconds(1500)}); });
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(Join, TakesAnInheritedSocketOrTheAgentsStore) {
  int port = 0;
  const int inherited = listening_socket(&port);
  auto statuses = fork_ranks(3, [&](const WorldInfo& given) {
    WorldInfo info = given;
    info.master_port = port;
    setenv("PHALANX_MASTER_FD", std::to_string(inherited).c_str(), 1);
    auto world = World::join(info, {.join_deadline = seconds(10)});
    world->group("all", all_ranks(*world))->barrier(test_call);
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(3, 0));
  close(inherited);
  statuses = fork_ranks(1, [&](const WorldInfo& given) {
    setenv("PHALANX_MASTER_FD", "0", 1);
    expect_error(ExitCode::environment, {"PHALANX_MASTER_FD is '0'", "listening socket"}, [&] {
      World::join({.rank = 0, .size = 2, .master_port = port}, {.join_deadline = seconds(1)});
    });
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(Join, NothingIsLeftBehind) {
  const auto files = [] {
    int count = 0;
    for (const char* folder : {"/dev/shm", "/tmp"})
      for (const auto& file : std::filesystem::directory_iterator(folder))
        count += file.path().filename().string().find("phalanx-group") == 0 ||
                 std::string(folder) == "/dev/shm";
    return count;
  };
  const int before = files();
  run_ranks(3, [](World& world) {
    auto group = world.group("all", all_ranks(world));
    const auto round = [&](int number) {
      auto other = world.group(text("again ", number), all_ranks(world));
      auto buffer = other->allocate(1 << 20), window = other->allocate_window(1 << 16);
      other->all_reduce(buffer, Op::sum, test_call).wait();
      other->barrier(test_call);
    };
    round(-1);
    const int descriptors = open_descriptors();
    for (int number = 0; number < 10; ++number) round(number);
    EXPECT_LE(open_descriptors(), descriptors);  // the store may still close some of joining
  });
  fork_ranks(2, [](const WorldInfo& info) {
    auto world = World::join(info);
    auto group = world->group("all", all_ranks(*world));
    auto buffer = group->allocate(1 << 20);
    group->barrier(test_call);
    _exit(9);
    return 0;
  });
  EXPECT_EQ(files(), before);
}

// A request to stop may come while ranks meet: it interrupts their system calls, and must neither
// end the meeting nor change the transport.
TEST(Join, SignalsDoNotDisturbTheMeeting) {
  for (auto transport : {Transport::automatic, Transport::gloo})
    for (int round = 0; round < 5; ++round) {
      auto statuses = fork_ranks(
          3,
          [&](const WorldInfo& info) {
            struct sigaction action{};
            action.sa_handler = [](int) {};
            action.sa_flags = SA_RESTART;
            sigaction(SIGALRM, &action, nullptr);
            const itimerval often{{0, 300}, {0, 300}};
            setitimer(ITIMER_REAL, &often, nullptr);
            auto world = World::join(info, {.transport = transport, .join_deadline = seconds(20)});
            auto group = world->group("dp", all_ranks(*world));
            EXPECT_EQ(group->transport(), transport == Transport::gloo ? "gloo" : "shared memory");
            auto buffer = group->allocate(4096);
            group->all_gather(at::zeros({300000}), at::zeros({100000}), test_call).wait();
            group->barrier(test_call);
            setitimer(ITIMER_REAL, nullptr, nullptr);
            return 0;
          },
          seconds(40));
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
    }
}

TEST(Join, MeshFindsItsGroups) {
  auto statuses = fork_ranks(4, [](const WorldInfo& info) {
    std::shared_ptr<World> world = World::join(info, {.deadline = seconds(20)});
    expect_error(ExitCode::usage, {"make 2 ranks", "world has 4"},
                 [&] { Mesh(world, Degrees{.dp_shard = 2}); });
    Mesh mesh(world, Degrees{.dp_replicate = 2, .dp_shard = 2});
    auto& shard = mesh.group({Dim::dp_shard});
    auto& both = mesh.group({Dim::dp_replicate, Dim::dp_shard});
    auto& replicate = mesh.group({Dim::dp_replicate});
    EXPECT_EQ(&mesh.group({Dim::dp_shard}), &shard);
    EXPECT_EQ(mesh.group({Dim::tp}).size(), 1);
    EXPECT_EQ(mesh.group({Dim::tp}).transport(), "single");
    EXPECT_EQ(both.size(), 4);
    EXPECT_EQ(mesh.coordinate(Dim::dp_shard), info.rank % 2);
    EXPECT_EQ(mesh.coordinate(Dim::dp_replicate), info.rank / 2);
    auto gathered = [&](Communicator& group) {
      auto out = at::zeros({group.size()}, at::kInt);
      group.all_gather(out, at::full({1}, info.rank, at::kInt), test_call).wait();
      return std::vector<int>(out.data_ptr<int>(), out.data_ptr<int>() + group.size());
    };
    const int row = info.rank / 2 * 2, column = info.rank % 2;
    EXPECT_EQ(gathered(shard), (std::vector<int>{row, row + 1}));
    EXPECT_EQ(gathered(replicate), (std::vector<int>{column, column + 2}));
    EXPECT_EQ(gathered(both), (std::vector<int>{0, 1, 2, 3}));
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace phalanx::testing
