#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <optional>

#include "phalanx/comm/local_peers.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/launch/pipe.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

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
    expect_error(ExitCode::peer_lost,
                 {"4 ranks", "did not join", "1, 3", "more time (train.join_deadline_s)"},
                 [&] { World::join(info, {.join_deadline = milliseconds(1500)}); });
    EXPECT_LT(seconds_since(begin), 6);
    return 0;
  });
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
  statuses = fork_ranks(2, [](const WorldInfo& info) {
    if (info.rank == 0) return 0;
    expect_error(ExitCode::environment,
                 {"rank 1", "cannot reach rank 0", "127.0.0.1", "train.join_deadline_s"},
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

TEST(Join, GroupsThatEndLeaveNoDescriptors) {
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
}

/// A soft limit for its lifetime.
class Limit {
 public:
  Limit(decltype(RLIMIT_NOFILE) which, rlim_t value) : which_(which) {
    getrlimit(which_, &before_);
    const rlimit lower{value, before_.rlim_max};
    setrlimit(which_, &lower);
  }
  ~Limit() { setrlimit(which_, &before_); }

 private:
  decltype(RLIMIT_NOFILE) which_;
  rlimit before_{};
};
constexpr rlim_t no_more_files = 3;  // what is open stays open

// Rank 2 can make no segment; the others meet a rank that has gone.
TEST(Join, WhyRanksCannotShareMemoryIsSaid) {
  for (auto transport : {Transport::automatic, Transport::shared_memory}) {
    SCOPED_TRACE(int(transport));
    const auto statuses = fork_ranks(3, [&](const WorldInfo& info) {
      std::shared_ptr<World> world;
      const auto join = [&] {
        signal(SIGXFSZ, SIG_IGN);
        std::optional<Limit> small;
        if (info.rank == 2) small.emplace(RLIMIT_FSIZE, 1024);
        world = World::join(info, {.transport = transport, .deadline = seconds(20)});
      };
      if (transport == Transport::shared_memory) {
        expect_error(ExitCode::environment,
                     {"shared memory was asked for", "phalanx bell", "File too large"}, join);
        return 0;
      }
      if (info.rank != 2) ::testing::internal::CaptureStderr();
      join();
      if (info.rank != 2) {
        const std::string said = ::testing::internal::GetCapturedStderr();
        EXPECT_EQ(contains(said, "cannot share memory and use Gloo"), info.rank == 0) << said;
        EXPECT_EQ(contains(said, "File too large"), info.rank == 0) << said;
      }
      auto group = world->group("all", all_ranks(*world));
      EXPECT_EQ(group->transport(), "gloo");
      group->barrier(test_call);
      return 0;
    });
    EXPECT_EQ(statuses, std::vector<int>(3, 0));
  }
}

TEST(Join, AnInterfaceThatIsNotThereIsNamed) {
  int done[2];
  ASSERT_EQ(pipe(done), 0);
  const auto statuses = fork_ranks(2, [&](const WorldInfo& info) {
    setenv("GLOO_SOCKET_IFNAME", "phalanx9", 1);
    auto world = World::join(info, {.transport = Transport::gloo, .deadline = seconds(20)});
    expect_error(ExitCode::environment, {"group all", "GLOO_SOCKET_IFNAME is 'phalanx9'"},
                 [&] { world->group("all", all_ranks(*world)); });
    if (info.rank == 1) return int(write(done[1], "x", 1)) - 1;
    pollfd ready{done[0], POLLIN, 0};
    return poll(&ready, 1, 20'000) - 1;  // its store stays as long as rank 1 joins
  });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
  close(done[0]);
  close(done[1]);
}

TEST(Join, AFullTableOfOpenFilesIsSaid) {
  const std::vector<int> ranks{0, 1};
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  LocalPeers low(0), high(1);
  const std::vector<std::string> addresses{low.address(), high.address()};
  high.connect(ranks, addresses, end);
  const Limit full(RLIMIT_NOFILE, no_more_files);
  expect_error(ExitCode::environment, {"cannot accept", "rank 0", "ulimit -n"},
               [&] { low.connect(ranks, addresses, end); });
}

TEST(Join, ASegmentForWhichNoDescriptorIsLeftIsSaid) {
  run_ranks(2, [](World& world) {
    auto group = world.group("dp", all_ranks(world));
    if (group->rank() == 0) {
      group->barrier(test_call);
      group->allocate_window(64);
    } else {
      const Limit full(RLIMIT_NOFILE, no_more_files);
      expect_error(ExitCode::environment, {"segment of rank 0", "open files", "ulimit -n"}, [&] {
        group->barrier(test_call);  // rank 0 sends only now
        group->allocate_window(64);
      });
    }
    group->barrier(test_call);
  });
}

TEST(Join, ASilentStrangerDoesNotHoldARankUp) {
  LocalPeers low(0), high(1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  low.address().copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const Descriptor stranger(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(stranger.get(), reinterpret_cast<sockaddr*>(&address),
                    socklen_t(offsetof(sockaddr_un, sun_path) + 1 + low.address().size())),
            0);
  const std::vector<std::string> addresses{low.address(), high.address()};
  const auto end = std::chrono::steady_clock::now() + seconds(20);
  high.connect({0, 1}, addresses, end);
  low.connect({0, 1}, addresses, end);
  expect_error(ExitCode::peer_lost, {"rank 0 was not reached by 1 ranks"}, [&] {
    LocalPeers alone(0);
    alone.connect({0, 1}, {alone.address(), "nobody"},
                  std::chrono::steady_clock::now() + milliseconds(100));
  });
}

// Local sockets that listen under the abstract name of one of these processes, and segments that
// such a process maps or holds open.
int traces_of(const std::vector<pid_t>& processes) {
  int found = 0;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);)
    for (pid_t process : processes)
      found += line.find(text("@phalanx-", process, "-")) != std::string::npos;
  for (pid_t process : processes) {
    std::ifstream maps(text("/proc/", process, "/maps"));
    for (std::string line; std::getline(maps, line);)
      found += line.find("/memfd:phalanx ") != std::string::npos;
  }
  return found;
}

// What a rank makes are segments without a name in any folder and a listening socket.
TEST(Join, NothingIsLeftBehindByRanksThatDie) {
  Pipe numbers = make_pipe();
  const auto statuses = fork_ranks(2, [&](const WorldInfo& info) {
    const pid_t self = getpid();
    if (write(numbers.write.get(), &self, sizeof(self)) != sizeof(self)) return 1;
    const LocalPeers listening(info.rank);  // as before ranks have met
    auto world = World::join(info);
    auto group = world->group("all", all_ranks(*world));
    auto buffer = group->allocate(1 << 20);
    group->barrier(test_call);
    if (traces_of({self}) < 3) return 1;  // the socket, the bell, the control block, the buffer
    kill(self, SIGKILL);
    return 0;
  });
  // The second to die may see the first one's death before its own.
  for (const int status : statuses)
    EXPECT_TRUE(status == SIGKILL || status == int(ExitCode::peer_lost) << 8) << status;
  numbers.write.reset();
  std::vector<pid_t> processes(2);
  ASSERT_EQ(read(numbers.read.get(), processes.data(), 2 * sizeof(pid_t)),
            ssize_t(2 * sizeof(pid_t)));
  EXPECT_EQ(traces_of(processes), 0);
}

// As a program that trains, and then evaluates or trains again, makes them.
TEST(Join, MeshesOfOneWorldComeOneAfterTheOtherAndSideBySide) {
  for (auto transport : {Transport::shared_memory, Transport::gloo}) {
    const auto statuses = fork_ranks(2, [&](const WorldInfo& info) {
      const std::shared_ptr<World> world =
          World::join(info, {.transport = transport, .deadline = seconds(20)});
      const auto sum = [&](Mesh& mesh, float value) {
        auto& group = mesh.group({Dim::dp_shard});
        EXPECT_EQ(group.name(), "dp_shard");
        auto buffer = group.allocate(int64_t(4096 * value)).view(at::kFloat);
        buffer.fill_(value);
        group.all_reduce(buffer, Op::sum, test_call).wait();
        group.barrier(test_call);
        return *buffer.const_data_ptr<float>();
      };
      for (const float value : {1.f, 2.f}) {
        Mesh mesh(world, Degrees{.dp_shard = 2});
        EXPECT_EQ(sum(mesh, value), 2 * value);
      }
      Mesh one(world, Degrees{.dp_shard = 2}), two(world, Degrees{.dp_shard = 2});
      for (const float value : {3.f, 4.f}) {
        EXPECT_EQ(sum(one, value), 2 * value);
        EXPECT_EQ(sum(two, 2 * value), 4 * value);
      }
      // Errors say the name that the program gave, whichever of its groups it is.
      expect_error(ExitCode::usage, {"cannot reduce", "group dp_shard"}, [&] {
        two.group({Dim::dp_shard}).all_reduce(at::zeros({4}, at::kBool), Op::sum, test_call);
      });
      return 0;
    });
    EXPECT_EQ(statuses, std::vector<int>(2, 0));
  }
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
