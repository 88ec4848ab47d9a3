#include <sys/stat.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>

#include "phalanx/base/error.h"
#include "phalanx/base/log.h"
#include "phalanx/comm/gloo_communicator.h"
#include "phalanx/comm/history.h"
#include "phalanx/comm/ledger.h"
#include "phalanx/comm/shared_communicator.h"
#include "phalanx/comm/store.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks with equal identities can share memory: same kernel, same network namespace.
std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space{};
  stat("/proc/self/ns/net", &space);
  return text(boot, "/", space.st_ino);
}

class JoinedWorld : public World {
 public:
  JoinedWorld(const WorldInfo& info, const WorldOptions& options) : info_(info), options_(options) {
    require(info.size >= 1 && info.rank >= 0 && info.rank < info.size, ExitCode::environment,
            "rank ", info.rank, " of a world of ", info.size, " ranks is impossible");
    if (info.size > 1) meet();
  }

  ~JoinedWorld() override {
    if (peers_) peers_->say_goodbye();
  }

  const WorldInfo& info() const override { return info_; }
  Ledger& ledger() override { return ledger_; }
  const WorldOptions& options() const override { return options_; }

  std::unique_ptr<Communicator> group(std::string name, std::span<const int> ranks) override {
    const std::vector<int> members(ranks.begin(), ranks.end());
    const auto self = std::find(members.begin(), members.end(), info_.rank);
    require(std::is_sorted(members.begin(), members.end()) && self != members.end() &&
                members.front() >= 0 && members.back() < info_.size &&
                std::adjacent_find(members.begin(), members.end()) == members.end(),
            ExitCode::usage, "group ", name, " of ranks ", phalanx::join(members), " made by rank ",
            info_.rank, ": ranks must ascend, be of the world (", info_.size,
            " ranks), and this rank be among them");
    if (members.size() == 1) return single_communicator(std::move(name));
    const int rank = int(self - members.begin());
    // Groups of one name may have other members elsewhere, and one group may be made again.
    std::string key = text(name, "/", phalanx::join(members, "."));
    key += text("#", ++made_[key]);
    if (use_shared_memory(name, members))
      return shared_communicator(std::move(name), key, members, rank, host_, options_.deadline,
                                 ledger_, *history_);
    const bool one_host =
        std::includes(local_ranks_.begin(), local_ranks_.end(), members.begin(), members.end());
    return gloo_communicator(
        std::make_shared<gloo_transport::Group>(std::move(name), key, members, rank, store_, peers_,
                                                one_host, info_, options_, ledger_, *history_));
  }

 private:
  void meet() {
    const auto deadline = Clock::now() + options_.join_deadline;
    store_ = open_store(info_, options_.join_deadline);
    auto peers = std::make_shared<LocalPeers>(info_.rank);
    const auto hosts =
        exchange(*store_, info_, "host", host_identity() + " " + peers->address(), deadline);
    const auto identity = [&](int rank) { return hosts[rank].substr(0, hosts[rank].find(' ')); };
    std::vector<std::string> addresses;
    for (int rank = 0; rank < info_.size; ++rank)
      if (identity(rank) == identity(info_.rank)) {
        local_ranks_.push_back(rank);
        addresses.push_back(hosts[rank].substr(hosts[rank].find(' ') + 1));
      }
    connect_host(std::move(peers), addresses, deadline);
    if (info_.rank == 0)
      log_debug(text("joined a world of ", info_.size, " ranks, ", local_ranks_.size(),
                     " of them on rank 0's host"));
  }

  // Sockets between the ranks of a host tell who died, whatever moves the data. Shared memory is
  // used if the exchange of descriptors worked for all of them.
  void connect_host(std::shared_ptr<LocalPeers> peers, const std::vector<std::string>& addresses,
                    Clock::time_point deadline) {
    std::string failure;
    if (local_ranks_.size() > 1) try {
        const auto soon = std::min(deadline, Clock::now() + std::chrono::seconds(30));
        peers->connect(local_ranks_, addresses, soon);
        if (options_.transport != Transport::gloo)
          host_ = std::make_shared<shared::Host>(info_.rank, peers, local_ranks_, soon);
        peers_ = std::move(peers);
      } catch (const Error& error) {
        // Whoever lost another rank only met that one's failure.
        failure = text(error.code() == ExitCode::peer_lost ? "met " : "has ", error.what());
        peers.reset();  // who waits for this rank's segments learns at once that none will come
      }
    const auto results = exchange(*store_, info_, "local", failure, deadline);
    for (int rank : local_ranks_)
      if (failure.empty() || results[rank].starts_with("has ")) failure = results[rank];
    if (failure.empty()) return;
    failure = failure.substr(4);
    if (options_.transport == Transport::shared_memory) {
      try {  // rank 0 may host the store from which others still read the reason
        exchange(*store_, info_, "refused", "", Clock::now() + std::chrono::seconds(1));
      } catch (const Error&) {
      }
      fail(ExitCode::environment, "shared memory was asked for and does not work here: ", failure);
    }
    if (options_.transport == Transport::automatic && info_.rank == local_ranks_.front())
      log_warning(text("ranks of this host cannot share memory and use Gloo: ", failure));
    host_.reset();
    peers_.reset();
  }

  bool use_shared_memory(const std::string& name, const std::vector<int>& members) const {
    if (options_.transport == Transport::gloo) return false;
    const bool local = host_ && std::includes(local_ranks_.begin(), local_ranks_.end(),
                                              members.begin(), members.end());
    const bool fits = members.size() <= size_t(shared::max_ranks);
    require((local && fits) || options_.transport == Transport::automatic, ExitCode::usage,
            "group ", name, " of ", members.size(), " ranks ",
            local ? text("is larger than the ", shared::max_ranks, " that can share memory")
                  : "spans hosts",
            ", and the transport was set to shared memory; leave it on automatic");
    return local && fits;
  }

  WorldInfo info_;
  WorldOptions options_;
  Ledger ledger_;
  const std::shared_ptr<CallHistory> history_ = new_history();
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<int> local_ranks_;
  std::shared_ptr<LocalPeers> peers_;
  std::shared_ptr<shared::Host> host_;
  std::map<std::string, int> made_;  // groups of one name and the same ranks so far
};

}  // namespace

std::shared_ptr<World> World::join(const WorldInfo& info, const WorldOptions& options) {
  return std::make_shared<JoinedWorld>(info, options);
}

std::unique_ptr<Communicator> group_of_all_ranks(World& world, std::string name) {
  std::vector<int> ranks(size_t(world.info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(std::move(name), ranks);
}

}  // namespace phalanx
