#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace phalanx {

/// One call of this rank. Plain data with fixed texts (cut if longer), so that a signal handler can
/// read it.
struct CallRecord {
  enum class State : uint8_t { none, issued, complete, failed };
  std::atomic<uint64_t> number{0};  ///< of this process, from 1; 0 while it is being written
  uint64_t sequence = 0;            ///< in its group, from 1
  int64_t bytes = 0;                ///< of this rank's input or output, the larger
  int64_t start_ns = 0;             ///< steady clock
  int64_t end_ns = 0;               ///< 0: not complete
  std::atomic<State> state{State::none};
  char group[24] = {}, operation[16] = {}, unit[32] = {}, purpose[24] = {};
};

/// The last calls of this process, over all groups. One thread writes; readers may be signal
/// handlers, which look at records() and nothing else.
class CallHistory {
 public:
  static constexpr int size = 256;

  /// Notes an issued call; returns its number.
  uint64_t begin(std::string_view group, uint64_t sequence, std::string_view operation,
                 std::string_view unit, std::string_view purpose, int64_t bytes);
  void end(uint64_t number, CallRecord::State state);

  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  const std::array<CallRecord, size>& records() const { return records_; }

  /// The last `most` calls, oldest first, one line each.
  std::string describe(int most = 10) const;

 private:
  std::array<CallRecord, size> records_;
  std::atomic<uint64_t> count_{0};
};

/// The history of a world, which outlives it for last_calls().
std::shared_ptr<CallHistory> new_history();

/// What describe() says of the world that this process joined last; it may have ended.
std::string last_calls(int most);

}  // namespace phalanx
