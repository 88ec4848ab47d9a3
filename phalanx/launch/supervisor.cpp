#include "phalanx/launch/supervisor.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

namespace phalanx {
namespace {

using namespace std::chrono_literals;

// A rank that lost a peer may be reaped before the peer that died: so long it is waited for.
constexpr auto cause_window = 1000ms;
// From SIGTERM to SIGKILL after a failure: with the window above under 5 s in all.
constexpr auto patience_after_failure = 2500ms;
constexpr size_t most_pending = 1 << 18;  // bytes kept for a slow reader before the ranks wait

bool ended_well(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == 0 ||
                               WEXITSTATUS(status) == static_cast<int>(ExitCode::interrupted));
}

// Killed by one of them, or left with the exit code that says so.
bool ended_by(int status, std::initializer_list<int> signals) {
  const int code = exit_code_of(status);
  return std::any_of(signals.begin(), signals.end(),
                     [code](int signal) { return code == 128 + signal; });
}

std::set<pid_t> children() {
  std::ifstream file(text("/proc/self/task/", getpid(), "/children"));
  std::set<pid_t> found;
  for (pid_t child; file >> child;) found.insert(child);
  return found;
}

}  // namespace

Supervisor::Supervisor(const LaunchOptions& options, Sink& out, Sink& error)
    : own_command_(options.own_command),
      earlier_children_(children()),
      log_dir_(options.log_dir),
      grace_(options.grace),
      out_(out),
      error_(error),
      ranks_(options.ranks) {
  if (log_dir_.empty()) return;
  for (int rank = 0; rank < options.ranks; ++rank) ranks_[rank].log.emplace(log_file(rank), error_);
}

Descriptor Supervisor::add_stream(int rank, bool is_error) {
  Sink& sink = is_error || rank != 0 ? error_ : out_;
  Pipe channel = make_channel(is_error ? error_ : out_, rank == 0);
  Rank& owner = ranks_[rank];
  owner.streams.emplace_back(rank, std::move(channel.read), sink, owner.log ? &*owner.log : nullptr,
                             is_error ? &owner.last_lines : nullptr);
  return std::move(channel.write);
}

int Supervisor::run(Birth birth, int signals) {
  birth_ = std::move(birth);
  signals_ = signals;
  while (!all_ended()) {
    wait_for_events();
    read_pids();
    reap();
    decide();
    enforce();
  }
  end_orphans();
  return result();
}

void Supervisor::wait_for_events() {
  std::vector<pollfd> polled{{signals_, POLLIN, 0}};
  if (birth_.pids.open()) polled.push_back({birth_.pids.get(), POLLIN, 0});
  for (Sink* sink : {&out_, &error_})
    if (sink->pending() > 0) polled.push_back({sink->descriptor(), POLLOUT, 0});
  std::vector<RankStream*> readable;
  if (std::max(out_.pending(), error_.pending()) < most_pending)
    for (auto& rank : ranks_)
      for (auto& stream : rank.streams)
        if (stream.open()) readable.push_back(&stream);
  const size_t streams_begin = polled.size();
  for (auto* stream : readable) polled.push_back({stream->descriptor(), POLLIN, 0});

  int timeout = -1;
  for (const auto& deadline : {decide_at_, kill_at_})
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      const int wait = static_cast<int>(std::max<int64_t>(0, left.count()));
      timeout = timeout < 0 ? wait : std::min(timeout, wait);
    }
  if (poll(polled.data(), polled.size(), timeout) <= 0) return;

  for (size_t i = 0; i < readable.size(); ++i)
    if (polled[streams_begin + i].revents) readable[i]->read_some();
  write_some();
  signalfd_siginfo info;
  if (polled[0].revents)
    while (read(signals_, &info, sizeof(info)) == sizeof(info))
      on_signal(static_cast<int>(info.ssi_signo));
}

void Supervisor::on_signal(int number) {
  if (number == SIGCHLD) return;  // reap() looks anyway
  if (number == SIGUSR1) {
    for (auto& rank : ranks_)
      if (!rank.ended && rank.pid > 0 && !birth_.go.open()) kill(rank.pid, SIGUSR1);
    return;
  }
  if (number == SIGWINCH) {
    for (auto& stream : ranks_[0].streams) stream.resize();
    if (!ranks_[0].ended && ranks_[0].pid > 0) kill(ranks_[0].pid, SIGWINCH);
    return;
  }
  const bool again = interrupted_ != 0 || first_;
  if (!interrupted_) interrupted_ = number;
  if (birth_.go.open()) {  // nothing runs yet that could be saved
    kill(-birth_.process, SIGKILL);
    signal_ranks(SIGKILL);
  } else if (again) {
    signal_ranks(SIGKILL);
  } else {
    signal_ranks(SIGTERM);
    kill_at_ = Clock::now() + grace_;
    error_.line(text("phalanx run: SIG", sigabbrev_np(number), ": asked the ranks to stop, with ",
                     grace_.count(), " s to save (--grace); once more ends them at once"));
  }
}

void Supervisor::read_pids() {
  if (!birth_.pids.open()) return;
  pid_t pid;
  ssize_t got;
  while ((got = read(birth_.pids.get(), &pid, sizeof(pid))) == sizeof(pid)) {
    ranks_[born_++].pid = pid;
    guard_.watch(pid);
  }
  if (got == 0) birth_.pids.reset();
}

void Supervisor::reap() {
  for (;;) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                    [&](const Rank& rank) { return rank.pid == info.si_pid; });
    // What the rank started goes with it; while the rank is not reaped its group's number is safe.
    if (found != ranks_.end()) {
      kill(-info.si_pid, SIGKILL);
      guard_.forget(info.si_pid);
    }
    earlier_children_.erase(info.si_pid);
    int status = 0;
    waitpid(info.si_pid, &status, 0);
    if (found != ranks_.end())
      on_rank_end(static_cast<int>(found - ranks_.begin()), status);
    else if (info.si_pid == birth_.process)
      on_birth_end(status);
  }
}

void Supervisor::on_birth_end(int status) {
  read_pids();
  birth_.process = -1;
  if (status != 0 || born_ < ranks_.size() || interrupted_) {
    birth_failure_ = interrupted_ ? 128 + interrupted_ : exit_code_of(status);
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGPIPE && !interrupted_)
      error_.line(text("error: the process that loads the ranks was ",
                       describe_status(status, own_command_)));
    for (size_t rank = born_; rank < ranks_.size(); ++rank) ranks_[rank].ended = true;
    signal_ranks(SIGKILL);
  }
  birth_.go.reset();
}

void Supervisor::on_rank_end(int number, int status) {
  Rank& rank = ranks_[number];
  rank.ended = true;
  rank.status = status;
  for (auto& stream : rank.streams) stream.finish();
  const bool by_us = rank.told && ended_by(status, {SIGTERM, SIGKILL, SIGINT});
  if (ended_well(status) || by_us) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  (first_ ? aftermath_ : failures_).push_back({number, rank.pid, status, seconds});
}

// Settles which failure was the first cause, and then ends the other ranks.
void Supervisor::decide() {
  if (failures_.empty() || first_ || birth_failure_) return;
  const RankEnd& cause = root_cause(failures_);
  const bool lost_a_peer = exit_code_of(cause.status) == static_cast<int>(ExitCode::peer_lost);
  if (lost_a_peer && !all_ended() && !decide_at_) decide_at_ = Clock::now() + cause_window;
  if (lost_a_peer && !all_ended() && Clock::now() < *decide_at_) return;
  first_ = cause;
  for (const auto& failure : failures_)
    if (failure.rank != first_->rank) aftermath_.push_back(failure);
  decide_at_.reset();
  kill_at_ = Clock::now() + patience_after_failure;
  signal_ranks(SIGTERM);
}

void Supervisor::enforce() {
  if (!kill_at_ || Clock::now() < *kill_at_) return;
  kill_at_.reset();
  const std::string in_time = first_ ? "" : text(" within ", grace_.count(), " s (--grace)");
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].ended)
      error_.line(
          text("phalanx run: rank ", rank, " did not stop when asked", in_time, " and is killed"));
  signal_ranks(SIGKILL);
}

void Supervisor::signal_ranks(int signal) {
  for (auto& rank : ranks_)
    if (!rank.ended && rank.pid > 0) {
      rank.told = true;
      kill(-rank.pid, signal);
    }
}

// Programs that left their rank's process group became children of this process, the subreaper.
void Supervisor::end_orphans() {
  for (int round = 0; round < 100; ++round) {
    int killed = 0;
    for (const pid_t child : children())
      if (child != guard_.process() && !earlier_children_.contains(child)) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        ++killed;
      }
    if (killed == 0) return;
  }
}

void Supervisor::write_some() {
  out_.write_some();
  if (out_.failure() && !told_loss_) {
    told_loss_ = true;
    error_.line(text("error: cannot write the ranks' output: ", std::strerror(out_.failure()),
                     "; what follows of it is lost, send stdout to where there is room"));
  }
  error_.write_some();
}

// Nothing runs any more, so it may take as long as the reader does; a signal ends the wait.
void Supervisor::flush() {
  while (out_.pending() + error_.pending() > 0) {
    pollfd polled[3] = {{signals_, POLLIN, 0}};
    int count = 1;
    for (Sink* sink : {&out_, &error_})
      if (sink->pending() > 0) polled[count++] = {sink->descriptor(), POLLOUT, 0};
    poll(polled, count, -1);
    write_some();
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof(info)) == sizeof(info))
      if (info.ssi_signo != SIGCHLD && info.ssi_signo != SIGWINCH) return;
  }
}

int Supervisor::result() {
  int code = 0;
  for (const auto& rank : ranks_)
    if (ended_by(rank.status, {SIGTERM, SIGKILL, SIGINT}))
      code = 128 + interrupted_;
    else if (exit_code_of(rank.status) != 0 && code == 0)
      code = exit_code_of(rank.status);  // 75: every other code is a failure
  // A program that leaves with 0 when it is asked to stop has not done all that it was to do; our
  // own commands say so by another code.
  const bool told = std::any_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank.told; });
  if (interrupted_ && code == 0 && told && !own_command_) code = 128 + interrupted_;
  if (birth_failure_) code = *birth_failure_;
  // A rank may have learned it from us, as the end of its pipe's reader.
  const bool by_loss = first_ && exit_code_of(first_->status) == 128 + SIGPIPE &&
                       (out_.failure() || error_.failure());
  if (first_ && !by_loss) {
    code = exit_code_of(first_->status);
    const auto& rank = ranks_[first_->rank];
    const std::string block =
        failure_block(*first_, static_cast<int>(ranks_.size()), own_command_,
                      {rank.last_lines.begin(), rank.last_lines.end()}, aftermath_,
                      log_dir_.empty() ? "" : log_file(first_->rank));
    error_.settle();
    error_.pass(block);
  }
  flush();
  const bool lost = out_.failure() || error_.failure();
  return lost && (code == 0 || by_loss) ? static_cast<int>(ExitCode::environment) : code;
}

bool Supervisor::all_ended() const {
  return birth_.process < 0 &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
}

std::string Supervisor::log_file(int rank) const { return text(log_dir_, "/rank-", rank, ".log"); }

}  // namespace phalanx
