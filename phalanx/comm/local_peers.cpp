#include "phalanx/comm/local_peers.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds patience(3);  // with a connection that says nothing

struct Header {
  enum Kind : uint32_t { hello, segment, goodbye } kind;
  int32_t rank;
  uint64_t tag;
  int64_t bytes;
};

socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a leading 0: no file
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Descriptor new_socket() {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  require(made.open(), ExitCode::environment, "cannot open a local socket: ", std::strerror(errno),
          "; raise the limit on open files (ulimit -n)");
  return made;
}

bool send_message(int socket, const Header& header, int descriptor, int flags) {
  iovec data{const_cast<Header*>(&header), sizeof(header)};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  while (sent < 0 && errno == EINTR);
  return sent == ssize_t(sizeof(header));
}

// 1: a message, 0: the other end is closed, -1: nothing there.
int receive_message(int socket, Header& header, Descriptor& descriptor, int flags) {
  iovec data{&header, sizeof(header)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return -1;
  if (got != ssize_t(sizeof(header))) return 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
    if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
      int value;
      std::memcpy(&value, CMSG_DATA(part), sizeof(int));
      descriptor = Descriptor(value);
    }
  return 1;
}

int milliseconds_until(Clock::time_point deadline) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return int(std::max<int64_t>(0, left.count()));
}

// False once the deadline has passed. A signal (a request to stop, say) interrupts poll(), not
// this.
bool readable(int socket, Clock::time_point deadline) {
  pollfd wait{socket, POLLIN, 0};
  int ready;
  do ready = ::poll(&wait, 1, milliseconds_until(deadline));
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

LocalPeers::LocalPeers(int rank) : rank_(rank) {
  uint64_t random[2];
  require(getrandom(random, sizeof(random), 0) == ssize_t(sizeof(random)), ExitCode::environment,
          "the system gives no random numbers");
  address_ = text("phalanx-", getpid(), "-", random[0], random[1]);
  listener_ = new_socket();
  sockaddr_un address;
  const socklen_t length = fill_address(address, address_);
  const bool listens = bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                       listen(listener_.get(), 1024) == 0;
  require(listens, ExitCode::environment,
          "cannot listen on a local socket: ", std::strerror(errno));
}

void LocalPeers::say_goodbye() {
  for (Peer& peer : peers_)
    if (peer.state == State::connected) {
      send_message(peer.socket.get(), {Header::goodbye, rank_, 0, 0}, -1, MSG_DONTWAIT);
      peer = {};
    }
}

void LocalPeers::adopt(int rank, Descriptor socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  peers_[rank].process = credentials.pid;
  peers_[rank].socket = std::move(socket);
  peers_[rank].state = State::connected;
}

void LocalPeers::connect(const std::vector<int>& ranks, const std::vector<std::string>& addresses,
                         Clock::time_point deadline) {
  peers_.resize(*std::max_element(ranks.begin(), ranks.end()) + 1);
  size_t above = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] > rank_) ++above;
    if (ranks[i] >= rank_) continue;
    Descriptor made = new_socket();
    sockaddr_un address;
    const socklen_t length = fill_address(address, addresses[i]);
    const bool reached =
        ::connect(made.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
        send_message(made.get(), {Header::hello, rank_, 0, 0}, -1, 0);
    require(reached, ExitCode::peer_lost, "rank ", rank_, " cannot reach rank ", ranks[i],
            " on the same host through a local socket: ", std::strerror(errno));
    adopt(ranks[i], std::move(made));
  }
  std::string stranger;
  while (above > 0) {
    require(Clock::now() < deadline && readable(listener_.get(), deadline),
            stranger.empty() ? ExitCode::peer_lost : ExitCode::environment, "rank ", rank_,
            " was not reached by ", above, " ranks of its host, though all have joined", stranger);
    Descriptor made(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!made.open() && (errno == EINTR || errno == ECONNABORTED)) continue;
    require(made.open(), ExitCode::environment, "rank ", rank_,
            " cannot accept the local connection of another rank: ", std::strerror(errno),
            "; raise the limit on open files (ulimit -n)");
    Header header{};
    Descriptor none;
    ucred credentials{};
    socklen_t length = sizeof(credentials);
    getsockopt(made.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    if (credentials.uid != geteuid()) {
      stranger = text("; user ", credentials.uid, " came and was refused by user ", geteuid(),
                      ": run all ranks of a host as one user");
      continue;
    }
    if (!readable(made.get(), std::min(deadline, Clock::now() + patience)) ||
        receive_message(made.get(), header, none, MSG_DONTWAIT) != 1 ||
        header.kind != Header::hello || header.rank <= rank_ || header.rank >= int(peers_.size()) ||
        peers_[header.rank].state != State::none)
      continue;  // not one of ours
    adopt(header.rank, std::move(made));
    --above;
  }
  listener_ = Descriptor();
}

void LocalPeers::send(int rank, uint64_t tag, const Descriptor& descriptor, int64_t bytes) {
  const Header header{Header::segment, rank_, tag, bytes};
  require(peers_.at(rank).state == State::connected &&
              send_message(peers_[rank].socket.get(), header, descriptor.get(), 0),
          ExitCode::peer_lost, "rank ", rank, " ended before it received a shared segment of rank ",
          rank_);
}

void LocalPeers::read_from(int rank) {
  Peer& peer = peers_[rank];
  while (peer.state == State::connected) {
    Header header{};
    Descriptor descriptor;
    const int got = receive_message(peer.socket.get(), header, descriptor, MSG_DONTWAIT);
    if (got < 0) return;
    // The system drops a descriptor for which there is no place, and delivers the rest.
    require(got == 0 || header.kind != Header::segment || descriptor.open(), ExitCode::environment,
            "a shared segment of rank ", rank, " found no place among the open files of rank ",
            rank_, "; raise the limit on open files (ulimit -n)");
    if (got == 0)
      peer.state = State::dead;
    else if (header.kind == Header::goodbye)
      peer.state = State::left;
    else
      inbox_.push_back({rank, header.tag, header.bytes, std::move(descriptor)});
  }
}

void LocalPeers::poll() {
  for (int rank = 0; rank < int(peers_.size()); ++rank) read_from(rank);
}

Descriptor LocalPeers::receive(int rank, uint64_t tag, int64_t expected_bytes,
                               Clock::time_point deadline, const std::string& what,
                               const std::function<std::string()>& over) {
  for (;;) {
    const std::string why = over ? over() : std::string();  // before the look at what it had sent
    auto found = std::find_if(inbox_.begin(), inbox_.end(), [&](const Message& message) {
      return message.rank == rank && message.tag == tag;
    });
    if (found != inbox_.end()) {
      require(found->bytes == expected_bytes, ExitCode::peer_lost, what, ": rank ", rank_,
              " asks for ", expected_bytes, " bytes and rank ", rank, " for ", found->bytes,
              "; all ranks must allocate equal sizes in the same order");
      Descriptor result = std::move(found->descriptor);
      inbox_.erase(found);
      return result;
    }
    poll();
    if (std::any_of(inbox_.begin(), inbox_.end(), [&](const Message& message) {
          return message.rank == rank && message.tag == tag;
        }))
      continue;
    require(why.empty(), ExitCode::peer_lost, why, " while rank ", rank_,
            " waited for it in: ", what);
    for (int other = 0; other < int(peers_.size()); ++other)
      require(peers_[other].state != State::dead, ExitCode::peer_lost, "rank ", other, " (process ",
              peers_[other].process, ") died while rank ", rank_, " waited for rank ", rank,
              " in: ", what);
    require(!left(rank), ExitCode::peer_lost, "rank ", rank, " left the run while rank ", rank_,
            " waited for it in: ", what);
    require(Clock::now() < deadline, ExitCode::peer_lost, "rank ", rank,
            " did not arrive before the deadline in: ", what);
    if (while_waiting && while_waiting()) continue;
    pollfd wait{peers_.at(rank).socket.get(), POLLIN, 0};
    ::poll(&wait, 1, std::min(while_waiting ? 1 : 50, milliseconds_until(deadline)));
  }
}

}  // namespace phalanx
