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
  const uint64_t number = ++count_;
  CallRecord& record = records_[number % size];
  record = {.number = number, .sequence = sequence, .bytes = bytes, .start_ns = now_ns()};
  copy_text(record.group, group);
  copy_text(record.operation, operation);
  copy_text(record.unit, unit);
  copy_text(record.purpose, purpose);
  return number;
}

void CallHistory::end(uint64_t number, CallRecord::State state) {
  CallRecord& record = records_[number % size];
  if (record.number != number) return;  // long overwritten
  record.end_ns = now_ns();
  record.state = state;
}

std::string CallHistory::describe(int most) const {
  const uint64_t kept = std::min({count_, uint64_t(most), uint64_t(size)});
  std::string lines;
  for (uint64_t number = count_ - kept + 1; number <= count_; ++number) {
    const CallRecord& record = records_[number % size];
    const int64_t end = record.end_ns ? record.end_ns : now_ns();
    lines += text("call ", record.sequence, " of group ", record.group, ": ", record.operation,
                  " for ", record.purpose, " of ", record.unit, ", ", record.bytes, " bytes, ",
                  name(record.state), ", ", (end - record.start_ns) / 1000, " us\n");
  }
  return lines;
}

namespace {
std::shared_ptr<CallHistory> newest;
}

std::shared_ptr<CallHistory> new_history() { return newest = std::make_shared<CallHistory>(); }

std::string last_calls(int most) { return newest ? newest->describe(most) : ""; }

}  // namespace phalanx
