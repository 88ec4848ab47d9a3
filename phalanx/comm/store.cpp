#include "phalanx/comm/store.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/base/listener.h"
#include "phalanx/device/failure.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

// The launcher bound the port before it started the ranks, so nobody can take it in between.
Descriptor inherited_listener() {
  const char* value = std::getenv("PHALANX_MASTER_FD");
  if (!value) return {};
  int number = -1;
  const std::string_view digits(value);
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  int listening = 0;
  socklen_t length = sizeof(listening);
  require(error == std::errc() && end == digits.end() &&
              getsockopt(number, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length) == 0 && listening,
          ExitCode::environment, "PHALANX_MASTER_FD is '", digits,
          "', which is not an open listening socket; unset it, or pass the socket to rank 0");
  fcntl(number, F_SETFD, FD_CLOEXEC);
  unsetenv("PHALANX_MASTER_FD");  // the store closes it: it serves once
  return Descriptor(number);
}

bool agent_hosts_store() {
  const char* value = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  return value && std::string_view(value) == "True";
}

// Waits until somebody listens there. The store's own attempts are logged at length.
bool reachable(const WorldInfo& info, Clock::time_point deadline) {
  do {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const auto port = std::to_string(info.master_port);
    if (getaddrinfo(info.master_address.c_str(), port.c_str(), &hints, &found) == 0) {
      bool connected = false;
      for (addrinfo* each = found; each && !connected; each = each->ai_next) {
        Descriptor probe(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (!probe.open()) continue;
        connected = connect(probe.get(), each->ai_addr, each->ai_addrlen) == 0;
        if (connected || errno != EINPROGRESS) continue;
        pollfd wait{probe.get(), POLLOUT, 0};
        int error = ETIMEDOUT;
        socklen_t length = sizeof(error);
        if (poll(&wait, 1, 1000) > 0)
          getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        connected = error == 0;
      }
      freeaddrinfo(found);
      if (connected) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  } while (Clock::now() < deadline);
  return false;
}

c10::intrusive_ptr<c10d::Store> make_store(const WorldInfo& info, c10d::TCPStoreOptions options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(info.master_address, options);
  } catch (const std::exception& error) {
    if (std::string_view(error.what()).find("libuv") == std::string_view::npos) throw;
    options.useLibUV = false;  // some builds have none
    return c10::make_intrusive<c10d::TCPStore>(info.master_address, options);
  }
}

}  // namespace

std::string store_name(const WorldInfo& info) {
  return text(agent_hosts_store() ? "torchrun's" : "rank 0's", " store at ", info.master_address,
              ":", info.master_port);
}

c10::intrusive_ptr<c10d::Store> open_store(const WorldInfo& info,
                                           std::chrono::milliseconds deadline) {
  c10d::TCPStoreOptions options;
  options.port = uint16_t(info.master_port);
  options.waitWorkers = false;
  options.timeout = deadline;
  options.isServer = info.rank == 0 && !agent_hosts_store();
  Descriptor listener;
  if (options.isServer) {
    listener = inherited_listener();
    // Binding here and not in the store gives an exact error.
    if (!listener.open())
      listener = listen_on(info.master_port, Reach::everywhere,
                           "set MASTER_PORT to a free one, on which rank 0 meets the other ranks")
                     .socket;
    options.masterListenFd = fcntl(listener.get(), F_DUPFD_CLOEXEC, 3);  // the store's own
  }
  c10::intrusive_ptr<c10d::Store> store;
  const auto unreachable = [&](const std::string& why) {
    fail(ExitCode::environment, "rank ", info.rank, " cannot reach ", store_name(info), " within ",
         deadline.count(), " ms", why,
         " (train.join_deadline_s); is it running, and are "
         "MASTER_ADDR and MASTER_PORT the same for all ranks?");
  };
  if (!options.isServer && !reachable(info, Clock::now() + deadline)) unreachable("");
  try {
    store = make_store(info, options);
  } catch (const std::exception& error) {
    unreachable(" (" + first_line(error.what()) + ")");
  }
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  return c10::make_intrusive<c10d::PrefixStore>(text("phalanx/", variable("TORCHELASTIC_RUN_ID"),
                                                     "/", variable("TORCHELASTIC_RESTART_COUNT")),
                                                store);
}

std::vector<std::string> exchange(c10d::Store& store, const WorldInfo& info,
                                  const std::string& topic, const std::string& value,
                                  Clock::time_point deadline) {
  std::vector<std::string> keys, values;
  for (int rank = 0; rank < info.size; ++rank) keys.push_back(text(topic, "/", rank));
  std::vector<bool> come(size_t(info.size), false);
  try {
    store.set(keys[size_t(info.rank)], std::vector<uint8_t>(value.begin(), value.end()));
    for (auto pause = std::chrono::milliseconds(1); !store.check(keys);) {
      if (Clock::now() > deadline) break;
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::milliseconds(50));
    }
    if (store.check(keys)) {
      for (const auto& got : store.multiGet(keys)) values.emplace_back(got.begin(), got.end());
      return values;
    }
    for (size_t rank = 0; rank < keys.size(); ++rank) come[rank] = store.check({keys[rank]});
    if (info.rank == 0) std::this_thread::sleep_for(std::chrono::seconds(1));  // others ask, too
  } catch (const std::exception& error) {
    fail(ExitCode::peer_lost, "rank ", info.rank, " lost ", store_name(info),
         " while it waited for all ranks to join (", first_line(error.what()), ")");
  }
  std::vector<int> missing;
  for (int rank = 0; rank < info.size; ++rank)
    if (!come[size_t(rank)]) missing.push_back(rank);
  fail(ExitCode::peer_lost, "of ", info.size,
       " ranks, these did not join before the deadline: ", join(missing),
       "; look at their output, or give them more time (train.join_deadline_s)");
}

}  // namespace phalanx
