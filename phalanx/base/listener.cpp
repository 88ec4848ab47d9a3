#include "phalanx/base/listener.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
  sockaddr* generic() { return reinterpret_cast<sockaddr*>(&storage); }
};

// An IPv6 socket serves both families.
Address address_of(int family, Reach reach, int port) {
  Address made;
  if (family == AF_INET6) {
    auto& address = reinterpret_cast<sockaddr_in6&>(made.storage);
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    made.length = sizeof(address);
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(made.storage);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(reach == Reach::this_host ? INADDR_LOOPBACK : INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    made.length = sizeof(address);
  }
  return made;
}

// -1 with errno if not.
int try_to_listen(int socket, int family, Address address) {
  const int on = 1, off = 0;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket, address.generic(), address.length) != 0 || listen(socket, SOMAXCONN) != 0 ||
      getsockname(socket, address.generic(), &address.length) != 0)
    return -1;
  return ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port
                                  : reinterpret_cast<sockaddr_in&>(address.storage).sin_port);
}

}  // namespace

Listener listen_on(int port, Reach reach, const std::string& other) {
  const std::vector<int> families =
      reach == Reach::this_host ? std::vector{AF_INET} : std::vector{AF_INET6, AF_INET};
  for (const int family : families) {
    Descriptor made(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!made.open()) continue;
    const int got = try_to_listen(made.get(), family, address_of(family, reach, port));
    if (got >= 0) return {std::move(made), got};
    if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) break;
  }
  require(errno != EADDRINUSE, ExitCode::environment, "port ", port, " is in use on this machine; ",
          other);
  fail(ExitCode::environment, "cannot listen on port ", port,
       reach == Reach::this_host ? " of the loopback interface: " : ": ", std::strerror(errno));
}

}  // namespace phalanx
