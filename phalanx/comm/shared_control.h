#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "phalanx/comm/signature.h"

namespace phalanx::shared {

// The memory through which the ranks of one host speak. Each rank writes its own block and reads
// those of the others; the one exception is named. Numbers of calls count from 1, so zeroed memory
// means "nothing yet".

constexpr int max_ranks = 256;            ///< of a group on one host
constexpr int slot_count = 128;           ///< calls in flight per group
constexpr int64_t ring_bytes = 1 << 20;   ///< staging of whole inputs, copied when issued
constexpr int64_t ring_limit = 64 << 10;  ///< of private inputs
constexpr int64_t ring_always = 4096;     ///< of all inputs

constexpr int64_t chunk_bytes = 256 << 10;  ///< larger inputs are staged in chunks while waiting
constexpr int chunk_depth = 4;
constexpr int max_segments = 1 << 16;  ///< allocations per group
constexpr int mail_count = 64;         ///< sends in flight per pair
constexpr int64_t mail_inline_bytes = 4096;
constexpr int64_t mail_chunk_bytes = 64 << 10;

/// Where the input of a call lies.
enum class Place : uint8_t { nothing, segment, ring, chunks };

struct Location {
  Place place = Place::nothing;
  uint32_t segment = 0;
  int64_t offset = 0;  ///< in the segment, or in the control block
  int64_t table = -1;  ///< all_to_all: {offset, bytes} per rank, in the control block
};

struct Slot {
  alignas(64) std::atomic<uint64_t> published;  ///< the number of the call, once the rest is valid
  Signature signature;
  Location location;
  // Chunks of which this rank has done its work; all_done: of all, or there is no such work.
  alignas(64) std::atomic<uint32_t> produced;  ///< that peers may read
  std::atomic<uint32_t> reduced;               ///< all_reduce: whose sum peers may read
  std::atomic<uint32_t> consumed;              ///< that this rank has read from all peers
  std::atomic<uint64_t> finished;              ///< the call's number, once it has read everything
  alignas(64) char unit[40];
  char purpose[24];
};

/// One message of a pair, written by its sender.
struct Mail {
  alignas(64) std::atomic<uint64_t> published;
  int32_t tag;
  int8_t dtype;
  Place place;
  uint32_t segment;
  int64_t offset, bytes;
  std::atomic<uint32_t> produced;
};

/// The other side of a Mail, written by its receiver.
struct MailAnswer {
  alignas(64) std::atomic<uint64_t> matched;  ///< the message is being received
  std::atomic<uint32_t> consumed;
  std::atomic<uint64_t> finished;
};

struct Control {
  alignas(64) std::atomic<uint64_t> issued;  ///< calls of this rank so far
  alignas(64) std::atomic<uint32_t> closed;
  std::atomic<uint32_t> aborted;  ///< 0, 1 being written, 2 written
  char reason[512];
  Slot slots[slot_count];
  /// Per segment: uses of a window that this rank has released; freed_segment once it gave it up.
  std::atomic<uint32_t> segments[max_segments];
};
constexpr uint32_t freed_segment = UINT32_MAX;
constexpr uint32_t all_done = UINT32_MAX;

/// Wakes a sleeping rank; one per process. Peers add to `bell`.
struct Bell {
  alignas(64) std::atomic<uint32_t> bell;
  alignas(64) std::atomic<uint32_t> sleeping;
};

// Offsets in a rank's control segment.
constexpr int64_t round_up(int64_t value) { return (value + 4095) / 4096 * 4096; }
constexpr int64_t ring_offset = round_up(sizeof(Control));
constexpr int64_t chunk_offset = ring_offset + ring_bytes;
constexpr int64_t mail_offset = chunk_offset + chunk_depth * chunk_bytes;
constexpr int64_t answer_offset = round_up(sizeof(Mail) * mail_count);
constexpr int64_t mail_inline_offset = answer_offset + round_up(sizeof(MailAnswer) * mail_count);
constexpr int64_t mail_chunk_offset = mail_inline_offset + mail_count * mail_inline_bytes;
constexpr int64_t pair_bytes = mail_chunk_offset + chunk_depth * mail_chunk_bytes;
constexpr int64_t control_bytes(int ranks) { return mail_offset + ranks * pair_bytes; }

}  // namespace phalanx::shared
