#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace phalanx {

/// One call of this rank; texts are cut if longer.
struct CallRecord {
  enum class State : uint8_t { issued, complete, failed };
  uint64_t number = 0;    ///< of this process, from 1
  uint64_t sequence = 0;  ///< in its group, from 1
  int64_t bytes = 0;      ///< of this rank's input or output, the larger
  int64_t start_ns = 0;   ///< steady clock
  int64_t end_ns = 0;     ///< 0: not complete
  State state = State::issued;
  char group[24] = {}, operation[16] = {}, unit[32] = {}, purpose[24] = {};
};

/// The last calls of this process, over all groups. Used by one thread.
class CallHistory {
 public:
  static constexpr int size = 256;

  /// Notes an issued call; returns its number.
  uint64_t begin(std::string_view group, uint64_t sequence, std::string_view operation,
                 std::string_view unit, std::string_view purpose, int64_t bytes);
  void end(uint64_t number, CallRecord::State state);

  /// The last `most` calls, oldest first, one line each.
  std::string describe(int most) const;

 private:
  std::array<CallRecord, size> records_;
  uint64_t count_ = 0;
};

/// The history of a world, which outlives it for last_calls().
std::shared_ptr<CallHistory> new_history();

/// What describe() says of the world that this process joined last; it may have ended.
std::string last_calls(int most);

}  // namespace phalanx
