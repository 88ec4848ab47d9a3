#include "phalanx/comm/gloo_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <climits>
#include <cstdlib>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/comm/store.h"
#include "phalanx/device/failure.h"

namespace phalanx::gloo_transport {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds roll_call(1000);

struct Fingerprint {
  uint64_t number = 0;
  Signature signature;
  char unit[40] = {}, purpose[24] = {};
};

// The address from which this host reaches rank 0's; empty if that is only itself.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  std::string result;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return result;
  for (addrinfo* each = found; each && result.empty(); each = each->ai_next) {
    Descriptor probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    char text[INET6_ADDRSTRLEN] = {};
    if (!probe.open() || connect(probe.get(), each->ai_addr, each->ai_addrlen) != 0 ||
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
        getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0)
      continue;
    result = text;
  }
  freeaddrinfo(found);
  return result.starts_with("127.") || result == "::1" ? std::string() : result;
}

bool leads_out(const sockaddr& address) {
  if (address.sa_family != AF_INET6) return address.sa_family == AF_INET;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// The first interface that is up and leads out of this host; empty if there is none.
std::string outward_interface() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* each = all; each && name.empty(); each = each->ifa_next)
    if (each->ifa_addr && leads_out(*each->ifa_addr) && each->ifa_flags & IFF_UP &&
        each->ifa_flags & IFF_RUNNING && !(each->ifa_flags & IFF_LOOPBACK))
      name = each->ifa_name;
  freeifaddrs(all);
  return name;
}

auto device(bool one_host, const WorldInfo& info, const std::string& interface) {
  using c10d::ProcessGroupGloo;
  if (!interface.empty()) return ProcessGroupGloo::createDeviceForInterface(interface);
  if (one_host) return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  char own_name[HOST_NAME_MAX + 1] = {};
  gethostname(own_name, HOST_NAME_MAX);
  // Rank 0's host may know MASTER_ADDR as a loopback address, which would lead other hosts to
  // themselves; so it may its own name (Debian's 127.0.1.1).
  for (const std::string& host : {info.master_address, std::string(own_name)})
    if (const auto address = address_towards(host, info.master_port); !address.empty())
      return ProcessGroupGloo::createDeviceForHostname(address);
  const auto outward = outward_interface();
  require(!outward.empty(), ExitCode::environment, info.master_address,
          " (MASTER_ADDR) leads to this host only, and no other network is up");
  return ProcessGroupGloo::createDeviceForInterface(outward);
}

}  // namespace

at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(
      tensor.mutable_data_ptr(), {int64_t(tensor.nbytes())}, [tensor](void*) {}, at::kByte);
}

Group::Group(std::string name, const std::string& key, std::vector<int> world_ranks, int rank,
             c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<LocalPeers> peers,
             bool one_host, const WorldInfo& info, const WorldOptions& options, Ledger& ledger_,
             CallHistory& history_)
    : ledger(ledger_, name),
      history(history_),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      size_(int(world_ranks_.size())),
      peers_(std::move(peers)),
      info_(info),
      options_(options) {
  store_ = c10::make_intrusive<c10d::PrefixStore>("group/" + key, std::move(store));
  connect(one_host);
}

// The first one's thread may still be giving work to the second.
Group::~Group() {
  first_.reset();
  second_.reset();
}

void Group::connect(bool one_host) {
  // Gloo writes to sockets that a dead peer has closed; the default would end this rank in silence
  // instead of with the name of the peer.
  if (struct sigaction now{}; sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  const auto make_device = [&] {
    try {
      return device(one_host, info_, interface ? interface : "");
    } catch (const std::exception& error) {
      fail(ExitCode::environment, "group ", name_, " has no network for Gloo on rank ", rank_, ": ",
           first_line(error.what()), "; GLOO_SOCKET_IFNAME is '", interface ? interface : "",
           "', set it to the interface that leads to the other hosts");
    }
  };
  const auto first_device = make_device(), second_device = make_device();
  std::vector<std::string> keys;
  for (int other = 0; other < size_; ++other) keys.push_back(text("here/", other));
  std::string why;
  try {
    store_->set(keys[size_t(rank_)], std::vector<uint8_t>{1});
    store_->wait(keys, options_.deadline);
    auto make = [&](const char* which, const auto& device) {
      auto settings = c10d::ProcessGroupGloo::Options::create(options_.deadline);
      settings->devices.push_back(device);
      settings->threads = 1;
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(which, store_), rank_, size_, settings);
    };
    first_ = make("first", first_device);
    second_ = make("second", second_device);
    return;
  } catch (const std::exception& error) {
    why = first_line(error.what());
  }
  fail_group("making the group", why);
}

uint64_t Group::begin(Signature signature, const Call& call, int64_t bytes) {
  check();
  const uint64_t number = ++calls_;
  signature.unit = hash_name(call.unit);
  signature.purpose = hash_name(call.purpose);
  if (options_.debug) {
    Fingerprint own{.number = number, .signature = signature};
    copy_text(own.unit, call.unit);
    copy_text(own.purpose, call.purpose);
    std::vector<Fingerprint> all(static_cast<size_t>(size_));
    auto in = at::from_blob(&own, {int64_t(sizeof(own))}, at::kByte);
    auto out = at::from_blob(all.data(), {int64_t(sizeof(own)) * size_}, at::kByte);
    const std::string own_text = describe(number, signature, own.unit, own.purpose);
    try {
      all_gather(out, in, call.deadline)->wait();
    } catch (const std::exception& error) {
      fail_group("comparing the fingerprint of " + own_text, first_line(error.what()));
    }
    ledger.add("fingerprints", int64_t(sizeof(own)) * (size_ - 1));
    for (int other = 1; other < size_; ++other) {
      const auto &a = all[0], &b = all[size_t(other)];
      if (a.signature == b.signature && a.number == b.number) continue;
      failure_ = text("ranks of group ", name_, " disagree: rank 0 issued ",
                      describe(a.number, a.signature, a.unit, a.purpose), "; rank ", other,
                      " issued ", describe(b.number, b.signature, b.unit, b.purpose),
                      "; all ranks must issue the same calls in the same order");
      throw Error(ExitCode::peer_lost, failure_);
    }
  }
  return history.begin(name_, number, phalanx::name(signature.collective), call.unit, call.purpose,
                       bytes);
}

uint64_t Group::begin_message(const char* operation, const Call& call, int64_t bytes) {
  check();
  return history.begin(name_, 0, operation, call.unit, call.purpose, bytes);
}

WorkPointer Group::all_gather(at::Tensor out, at::Tensor in, std::chrono::milliseconds deadline) {
  c10d::AllgatherOptions settings;
  settings.timeout = deadline.count() ? deadline : options_.deadline;
  return first_->_allgather_base(out, in, settings);
}

WorkPointer Group::all_to_all(at::Tensor out, std::vector<int64_t> out_bytes, at::Tensor in,
                              std::vector<int64_t> in_bytes, bool second) {
  return (second ? second_ : first_)->alltoall_base(out, in, out_bytes, in_bytes);
}

WorkPointer Group::broadcast(at::Tensor inout, int root, std::chrono::milliseconds deadline) {
  std::vector<at::Tensor> tensors{std::move(inout)};
  c10d::BroadcastOptions settings;
  settings.rootRank = root;
  settings.timeout = deadline.count() ? deadline : options_.deadline;
  return first_->broadcast(tensors, settings);
}

WorkPointer Group::send(at::Tensor tensor, int peer, int tag) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return first_->send(tensors, peer, tag);
}

WorkPointer Group::receive(at::Tensor tensor, int peer, int tag) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  return first_->recv(tensors, peer, tag);
}

void Group::check() const {
  if (!failure_.empty()) throw Error(ExitCode::peer_lost, failure_);
}

// The sockets of this host tell who died, soon after Gloo's own. Ranks of other hosts answer a roll
// call in the store, as each of them meets the failure, too.
std::string Group::missing_ranks() {
  std::vector<int> silent;
  for (int other = 0; other < size_; ++other)
    if (other != rank_) silent.push_back(other);
  try {
    store_->set(text("roll/", rank_), std::vector<uint8_t>{1});
    const auto end = Clock::now() + roll_call;
    while (Clock::now() < end && !silent.empty()) {
      if (const std::string gone = gone_ranks(); !gone.empty()) return gone;
      std::erase_if(silent, [&](int other) { return store_->check({text("roll/", other)}); });
      usleep(10000);
    }
  } catch (const std::exception&) {
    usleep(100000);
    const std::string gone = gone_ranks();
    return gone.empty() ? store_name(info_) + " is gone" : gone;
  }
  if (silent.empty()) return "all ranks answer, so the network lost a connection";
  std::vector<std::string> names;
  for (int other : silent) names.push_back(text("rank ", other, " did not answer"));
  return join(names);
}

std::string Group::gone_ranks() {
  if (!peers_) return {};
  peers_->poll();
  std::vector<std::string> dead, left;
  for (int other = 0; other < size_; ++other) {
    const int world_rank = world_ranks_[size_t(other)];
    if (other == rank_ || !peers_->knows(world_rank)) continue;
    if (peers_->dead(world_rank))
      dead.push_back(text("rank ", other, " (process ", peers_->process(world_rank), ") died"));
    else if (peers_->left(world_rank))
      left.push_back(text("rank ", other, " has finished and left"));
  }
  return join(dead.empty() ? left : dead);
}

void Group::fail_group(const std::string& call, const std::string& why) {
  if (failure_.empty())
    failure_ = text("group ", name_, " failed on rank ", rank_, " in ", call, ": ", missing_ranks(),
                    " (Gloo: ", why, ")");
  throw Error(ExitCode::peer_lost, failure_);
}

void Group::leave(std::string_view why) {
  log_error(text("group ", name_, " was aborted on rank ", rank_, ": ", why));
  _exit(int(ExitCode::peer_lost));
}

}  // namespace phalanx::gloo_transport
