#include "phalanx/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>

namespace phalanx {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 160> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), pattern, values...);
  return {buffer.data(), std::min<size_t>(length, buffer.size() - 1)};
}

// Three digits and a unit.
std::string scaled(double value, double base, const std::array<const char*, 5>& units) {
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < units.size()) value /= base, ++unit;
  return format(unit > 0 && value < 99.95 ? "%.1f%s" : "%.0f%s", value, units[unit]);
}

size_t columns(int descriptor) {
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

constexpr const char* erase = "\r\x1b[K";

}  // namespace

std::string bytes_text(double bytes) {
  return scaled(bytes, 1000, {" B", " KB", " MB", " GB", " TB"});
}

std::string count_text(double count) { return scaled(count, 1000, {"", "k", "M", "B", "T"}); }

std::string duration_text(double seconds) {
  if (!(seconds < 1e9)) return "?";
  const auto whole = static_cast<long long>(std::llround(std::max(0.0, seconds)));
  const long long hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? format("%lld:%02lld:%02lld", hours, minutes, rest)
                   : format("%lld:%02lld", minutes, rest);
}

std::string progress_line(const StepMetrics& metrics, int64_t steps, double limit_share,
                          double eta_seconds) {
  std::string line = format("step %lld/%lld  loss %.4g  norm %.2g  lr %.2g  ",
                            static_cast<long long>(metrics.step), static_cast<long long>(steps),
                            metrics.loss, metrics.grad_norm, metrics.lr) +
                     count_text(metrics.tokens_per_s) + " tok/s  ";
  if (limit_share >= 0) line += format("%.0f%% GEMM  ", 100 * limit_share);
  line += bytes_text(static_cast<double>(metrics.peak_memory_bytes));
  line += "  ETA " + duration_text(eta_seconds);
  return line;
}

Progress::Progress(int descriptor) : descriptor_(descriptor), terminal_(isatty(descriptor)) {}

Progress::~Progress() {
  if (!shown_.empty()) put("\n");
}

void Progress::put(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads: training goes on
    done += written;
  }
}

void Progress::update(const std::string& line, bool logged) {
  if (!terminal_) {
    if (logged) put(line + "\n");
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ && !logged) return;
  next_ = now + std::chrono::milliseconds(100);
  shown_ = line.substr(0, columns(descriptor_) - 1);
  put(erase + shown_);
}

void Progress::say(const std::string& line) {
  put((shown_.empty() ? "" : erase) + line + "\n" + shown_);
}

void Progress::clear() {
  if (!shown_.empty()) put(erase);
  shown_.clear();
}

}  // namespace phalanx
