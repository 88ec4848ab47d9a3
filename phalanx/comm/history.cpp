#include "phalanx/comm/history.h"

#include <algorithm>
#include <chrono>

#include "phalanx/base/text.h"
#include "phalanx/comm/signature.h"

namespace phalanx {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* name(CallRecord::State state) {
  switch (state) {
    case CallRecord::State::none:
      return "none";
    case CallRecord::State::issued:
      return "in flight";
    case CallRecord::State::complete:
      return "complete";
    case CallRecord::State::failed:
      return "failed";
  }
  return "?";
}

}  // namespace

uint64_t CallHistory::begin(std::string_view group, uint64_t sequence, std::string_view operation,
                            std::string_view unit, std::string_view purpose, int64_t bytes) {
  const uint64_t number = count_.load(std::memory_order_relaxed) + 1;
  CallRecord& record = records_[number % size];
  record.number.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  record.sequence = sequence;
  record.bytes = bytes;
  record.start_ns = now_ns();
  record.end_ns = 0;
  copy_text(record.group, group);
  copy_text(record.operation, operation);
  copy_text(record.unit, unit);
  copy_text(record.purpose, purpose);
  record.state.store(CallRecord::State::issued, std::memory_order_relaxed);
  record.number.store(number, std::memory_order_release);
  count_.store(number, std::memory_order_release);
  return number;
}

void CallHistory::end(uint64_t number, CallRecord::State state) {
  CallRecord& record = records_[number % size];
  if (record.number.load(std::memory_order_relaxed) != number) return;  // long overwritten
  record.end_ns = now_ns();
  record.state.store(state, std::memory_order_release);
}

std::string CallHistory::describe(int most) const {
  const uint64_t last = count();
  const uint64_t kept = std::min({last, uint64_t(most), uint64_t(size)});
  std::string lines;
  for (uint64_t number = last - kept + 1; number <= last; ++number) {
    const CallRecord& record = records_[number % size];
    const int64_t end = record.end_ns ? record.end_ns : now_ns();
    lines += text("call ", record.sequence, " of group ", record.group, ": ", record.operation,
                  " for ", record.purpose, " of ", record.unit, ", ", record.bytes, " bytes, ",
                  name(record.state.load()), ", ", (end - record.start_ns) / 1000, " us\n");
  }
  return lines;
}

namespace {
std::shared_ptr<CallHistory> newest;
}

std::shared_ptr<CallHistory> new_history() { return newest = std::make_shared<CallHistory>(); }

std::string last_calls(int most) { return newest ? newest->describe(most) : ""; }

}  // namespace phalanx
