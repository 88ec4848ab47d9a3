#include "phalanx/comm/memory.h"

#include <array>
#include <atomic>

#include "phalanx/device/memory.h"

namespace phalanx {
namespace {

struct Row {
  std::atomic<int64_t> now{0}, peak{0};
};

std::array<Row, 3> rows;

}  // namespace

SegmentMemory segment_memory() { return {rows[0].now, rows[1].now, rows[2].now}; }

SegmentMemory peak_segment_memory() { return {rows[0].peak, rows[1].peak, rows[2].peak}; }

void charge_segment(SegmentUse use, int64_t bytes) {
  if (use != SegmentUse::control) charge_memory(bytes);
  Row& row = rows[static_cast<size_t>(use)];
  const int64_t now = row.now += bytes;
  int64_t peak = row.peak;
  while (now > peak && !row.peak.compare_exchange_weak(peak, now)) {
  }
}

}  // namespace phalanx
