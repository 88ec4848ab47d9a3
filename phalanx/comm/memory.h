#pragma once

#include <cstdint>

namespace phalanx {

/// Bytes of shared segments that this process answers for. Pages are counted from the moment a
/// segment is made, touched or not; peers' parts are counted by the peers. Buffers and windows are
/// charged to rank_memory() of device/memory.h, too.
struct SegmentMemory {
  int64_t buffers = 0;  ///< Communicator::allocate
  int64_t windows = 0;  ///< this rank's part of Communicator::allocate_window
  int64_t control = 0;  ///< call slots and staging, per group
};

SegmentMemory segment_memory();       ///< now
SegmentMemory peak_segment_memory();  ///< largest of each row so far

enum class SegmentUse : uint8_t { buffer, window, control };

/// Adds `bytes` (negative: gives back) to the row of `use`.
void charge_segment(SegmentUse use, int64_t bytes);

}  // namespace phalanx
