#include "phalanx/launch/output.h"

#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>

namespace phalanx {
namespace {

constexpr size_t most_lines = 20;
constexpr size_t longest_line = 1 << 16;
constexpr size_t atomic_write = 4096;  // a pipe that poll() calls writable takes PIPE_BUF bytes
constexpr int most_left_reads = 64;    // more than a pipe or a terminal holds

// The part of a line that a terminal shows: what follows the last carriage return.
std::string_view shown(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const size_t at = line.rfind('\r');
  return at == std::string_view::npos ? line : line.substr(at + 1);
}

}  // namespace

void Sink::pass(std::string_view bytes) {
  if (closed_) return;
  pending_ += bytes;
  const size_t end = bytes.rfind('\n');
  if (end != std::string_view::npos) unfinished_.clear(), bytes.remove_prefix(end + 1);
  unfinished_ += bytes;
  // What is drawn again is what a terminal still shows; elsewhere only its being there counts.
  const size_t kept = terminal_ ? longest_line : 1;
  if (unfinished_.size() > 2 * kept) unfinished_.erase(0, unfinished_.size() - kept);
}

void Sink::line(std::string_view text) {
  if (closed_) return;
  if (!terminal_) settle();
  const bool redraw = !unfinished_.empty();
  if (redraw) pending_ += "\r\x1b[K";  // clear the unfinished line
  pending_ += text;
  pending_ += '\n';
  if (redraw) {
    const bool returned = unfinished_.back() == '\r';
    unfinished_ = std::string(shown(unfinished_)) + (returned ? "\r" : "");
    pending_ += unfinished_;
  }
}

void Sink::settle() {
  if (!unfinished_.empty()) pending_ += '\n';
  unfinished_.clear();
}

void Sink::write_some() {
  while (!pending_.empty() && !closed_) {
    pollfd ready{descriptor_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) return;
    size_t size = std::min(pending_.size(), atomic_write);
    // Whole lines where it can be: others may write to the same pipe.
    const size_t end = pending_.rfind('\n', size - 1);
    if (size < pending_.size() && end != std::string::npos) size = end + 1;
    const ssize_t written = write(descriptor_, pending_.data(), size);
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (written < 0) {
      const bool reader_gone = errno == EPIPE || (terminal_ && errno == EIO);
      failure_ = reader_gone ? 0 : errno;
      closed_ = true;
      pending_.clear();
      return;
    }
    pending_.erase(0, written);
  }
}

bool same_destination(int first, int second) {
  struct stat one{}, other{};
  return fstat(first, &one) == 0 && fstat(second, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

LogFile::LogFile(std::string path, Sink& errors)
    : path_(std::move(path)),
      errors_(&errors),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  require(file_.open(), ExitCode::environment, "cannot write ", path_, ": ", std::strerror(errno),
          "; give another --log-dir");
}

void LogFile::write(std::string_view bytes) {
  while (!bytes.empty() && file_.open()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      bytes.remove_prefix(written);
      continue;
    }
    errors_->line(text("warning: cannot write ", path_, ": ", std::strerror(errno),
                       "; its lines are lost from here on"));
    file_.reset();
  }
}

void RankStream::read_some() {
  if (sink_->closed() && !log_ && !last_)
    close();  // the rank learns it as it would without an agent
  else
    read_once();
}

void RankStream::finish() {
  if (!open()) return;
  fcntl(source_.get(), F_SETFL, O_NONBLOCK);
  for (int reads = 0; reads < most_left_reads && open() && read_once(); ++reads) {
  }
  close();
}

void RankStream::resize() {
  winsize size{};
  if (open() && sink_->terminal() && ioctl(sink_->descriptor(), TIOCGWINSZ, &size) == 0)
    ioctl(source_.get(), TIOCSWINSZ, &size);  // refused by pipes
}

bool RankStream::read_once() {
  char buffer[1 << 14];
  const ssize_t got = read(source_.get(), buffer, sizeof(buffer));
  if (got > 0) {
    take({buffer, static_cast<size_t>(got)});
    return true;
  }
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
  close();  // the end; a terminal gives EIO
  return false;
}

void RankStream::take(std::string_view bytes) {
  if (rank_ == 0 && sink_->terminal()) sink_->pass(bytes);
  partial_ += bytes;
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1)
    emit({partial_.data() + begin, end - begin}, true);
  partial_.erase(0, begin);
  if (partial_.size() > longest_line) {
    emit(partial_, false);
    partial_.clear();
  }
}

void RankStream::emit(std::string_view line, bool ended) {
  if (rank_ != 0) {
    sink_->line(text("[rank ", rank_, "] ", shown(line)));
  } else if (!sink_->terminal()) {
    sink_->pass(line);
    if (ended) sink_->pass("\n");
  }
  if (log_) log_->write(text(line, ended ? "\n" : ""));
  if (last_) {
    last_->push_back(std::string(shown(line)));
    if (last_->size() > most_lines) last_->pop_front();
  }
}

void RankStream::close() {
  if (!partial_.empty()) emit(partial_, false);
  partial_.clear();
  source_.reset();
}

Pipe make_channel(const Sink& sink, bool may_be_terminal) {
  if (!may_be_terminal || !sink.terminal()) return make_pipe();
  int ours, theirs;
  winsize size{};
  ioctl(sink.descriptor(), TIOCGWINSZ, &size);
  termios raw{};
  tcgetattr(sink.descriptor(), &raw);
  cfmakeraw(&raw);  // the outer terminal does what is to be done
  const bool opened = openpty(&ours, &theirs, nullptr, &raw, &size) == 0;
  require(opened, ExitCode::environment,
          "cannot make a terminal for rank 0: ", std::strerror(errno),
          "; send the output to a file or through `| cat`");
  for (int descriptor : {ours, theirs}) fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return {Descriptor(ours), Descriptor(theirs)};
}

}  // namespace phalanx
