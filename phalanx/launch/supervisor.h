#pragma once

#include <chrono>
#include <deque>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "phalanx/launch/failure.h"
#include "phalanx/launch/guard.h"
#include "phalanx/launch/launch.h"
#include "phalanx/launch/output.h"
#include "phalanx/launch/start.h"

namespace phalanx {

/// The loop of the agent: one thread, one poll().
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, Sink& out, Sink& error);

  /// The rank's end of a stream, which the caller hands on to start_ranks().
  Descriptor add_stream(int rank, bool is_error);
  /// Supervises until all ranks have ended; returns the run's exit code. `signals`: a signalfd.
  int run(Birth birth, int signals);

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    pid_t pid = -1;
    bool ended = false, told = false;  // told: by a signal of ours, before it ended
    int status = 0;
    std::deque<std::string> last_lines;
    std::optional<LogFile> log;
    std::list<RankStream> streams;
  };

  void wait_for_events();
  void on_signal(int number);
  void read_pids();
  void reap();
  void on_birth_end(int status);
  void on_rank_end(int rank, int status);
  void decide();
  void enforce();
  void signal_ranks(int signal);
  void end_orphans();
  void write_some();
  void flush();
  int result();
  bool all_ended() const;
  std::string log_file(int rank) const;

  const bool own_command_;
  std::set<pid_t> earlier_children_;  // of a shell that became this process: not ours to end
  const std::string log_dir_;
  const std::chrono::seconds grace_;
  Sink &out_, &error_;
  std::vector<Rank> ranks_;
  size_t born_ = 0;  // ranks whose pid is known
  Birth birth_;
  int signals_ = -1;
  Guard guard_;
  const Clock::time_point start_ = Clock::now();
  std::optional<int> birth_failure_;  // exit code of a template that did not start all ranks
  std::vector<RankEnd> failures_, aftermath_;  // before and after the first failure was settled
  std::optional<RankEnd> first_;               // the failure that ended the run
  std::optional<Clock::time_point> decide_at_, kill_at_;
  int interrupted_ = 0;     // the signal that asked the run to stop
  bool told_loss_ = false;  // that rank 0's output cannot be written
};

}  // namespace phalanx
