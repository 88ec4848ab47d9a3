#include "tests/support/ranks.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>

#include "phalanx/base/error.h"

namespace phalanx::testing {
namespace {

int free_port() {
  int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  require(bind(descriptor, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
              getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0,
          ExitCode::environment, "no free port on the loopback interface");
  close(descriptor);
  return ntohs(address.sin_port);
}

// The child's side: runs `body`, turns exceptions and failed expectations into the exit code.
[[noreturn]] void run_child(const std::function<int(const WorldInfo&)>& body,
                            const WorldInfo& info) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 1;
  try {
    code = body(info);
    if (::testing::Test::HasFailure()) code = 1;
  } catch (const Error& error) {
    std::cerr << "rank " << info.rank << ": " << error.what() << std::endl;
    code = static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::cerr << "rank " << info.rank << ": " << error.what() << std::endl;
  }
  std::cout.flush();
  std::cerr.flush();
  _exit(code);
}

}  // namespace

std::vector<int> fork_ranks(int ranks, std::function<int(const WorldInfo&)> body,
                            std::chrono::seconds deadline) {
  std::cout.flush();
  std::cerr.flush();
  const int port = free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    pid_t child = fork();
    if (child == 0) run_child(body, {rank, ranks, rank, ranks, "127.0.0.1", port});
    children.push_back(child);
  }
  std::vector<int> statuses(ranks, -1);
  int running = ranks;
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (running > 0 && std::chrono::steady_clock::now() < end) {
    for (int rank = 0; rank < ranks; ++rank) {
      int status = 0;
      if (children[rank] > 0 && waitpid(children[rank], &status, WNOHANG) == children[rank]) {
        statuses[rank] = status;
        children[rank] = 0;
        --running;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (pid_t child : children)
    if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  return statuses;
}

void run_ranks(int ranks, std::function<void(World&)> body, const RanksOptions& options) {
  auto statuses = fork_ranks(
      ranks,
      [&](const WorldInfo& info) {
        auto world = World::join(info, {.transport = options.transport,
                                        .deadline = options.call_deadline,
                                        .join_deadline = options.call_deadline,
                                        .debug = options.debug});
        body(*world);
        return 0;
      },
      options.deadline);
  for (int rank = 0; rank < ranks; ++rank) {
    const int status = statuses[rank];
    if (status == -1)
      ADD_FAILURE() << "rank " << rank << " of " << ranks << " was still running after "
                    << options.deadline.count() << " s";
    else
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << " of " << ranks
          << (WIFSIGNALED(status) ? " was killed by signal " : " left with exit code ")
          << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
}

namespace {

std::string new_folder(const std::filesystem::path& parent) {
  struct Folders {
    pid_t owner = getpid();
    std::vector<std::string> paths;
    ~Folders() {
      if (getpid() == owner)
        for (const auto& path : paths) std::filesystem::remove_all(path);
    }
  };
  static Folders folders;
  std::string pattern = (parent / "phalanx-test-XXXXXX").string();
  require(mkdtemp(pattern.data()) != nullptr, ExitCode::environment, "mkdtemp failed for ",
          pattern);
  folders.paths.push_back(pattern);
  return pattern;
}

}  // namespace

std::string temporary_folder() { return new_folder(std::filesystem::temp_directory_path()); }

std::string memory_folder() {
  const std::string memory = "/dev/shm";
  return access(memory.c_str(), W_OK) == 0 ? new_folder(memory) : temporary_folder();
}

}  // namespace phalanx::testing
