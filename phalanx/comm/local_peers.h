#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "phalanx/comm/segment.h"

namespace phalanx {

/// Sockets between the ranks of one host. They carry the descriptors of shared segments, and their
/// end tells that a rank died; one that finishes says goodbye first. Nothing in the file system.
class LocalPeers {
 public:
  explicit LocalPeers(int rank);  ///< listens under a new abstract name
  ~LocalPeers() { say_goodbye(); }

  const std::string& address() const { return address_; }

  /// Connects all pairs of `ranks` (this one among them). addresses[i] belongs to ranks[i].
  void connect(const std::vector<int>& ranks, const std::vector<std::string>& addresses,
               std::chrono::steady_clock::time_point deadline);

  void send(int rank, uint64_t tag, const Descriptor& descriptor, int64_t bytes);

  /// The next descriptor that `rank` sends under `tag`. Throws peer_lost, naming `what`. `over`
  /// says what `rank` did after which it sends none any more; empty while it may.
  Descriptor receive(int rank, uint64_t tag, int64_t expected_bytes,
                     std::chrono::steady_clock::time_point deadline, const std::string& what,
                     const std::function<std::string()>& over = {});

  /// Called while receive() waits, so that peers that wait for this rank go on.
  std::function<bool()> while_waiting;

  void say_goodbye();
  void poll();  ///< reads what has come, without waiting
  bool knows(int rank) const {
    return rank < int(peers_.size()) && peers_[rank].state != State::none;
  }
  bool dead(int rank) const { return peers_.at(rank).state == State::dead; }
  bool left(int rank) const { return peers_.at(rank).state == State::left; }
  bool gone(int rank) const { return dead(rank) || left(rank); }
  int process(int rank) const { return peers_.at(rank).process; }

 private:
  enum class State : uint8_t { none, connected, left, dead };
  struct Peer {
    Descriptor socket;
    int process = 0;
    State state = State::none;
  };
  struct Message {
    int rank;
    uint64_t tag;
    int64_t bytes;
    Descriptor descriptor;
  };
  void read_from(int rank);
  void adopt(int rank, Descriptor socket);

  int rank_;
  std::string address_;
  Descriptor listener_;
  std::vector<Peer> peers_;  // by world rank; unconnected where not on this host
  std::list<Message> inbox_;
};

}  // namespace phalanx
