#pragma once

#include <cstdint>

namespace phalanx {

/// Bytes in use: now, and at most since the last reset_peak_memory().
struct MemoryUse {
  int64_t current = 0, peak = 0;
};

/// Makes LibTorch's CPU tensors come from an allocator that counts, for the whole process; call it
/// before the first tensor. Later calls do nothing. Tensors that are older are not counted.
void count_memory();

/// What glibc's malloc gets back it keeps for the next allocation instead of returning it to the
/// kernel: a training step asks for the same sizes again and again, and fresh pages cost more than
/// the work on them. For the whole process; call it before the first tensor.
void keep_freed_memory();

MemoryUse tensor_memory();  ///< of CPU tensors, as the allocator rounds them
/// What this rank answers for: its tensors and what was charged (its shared segments).
MemoryUse rank_memory();
void reset_peak_memory();  ///< both peaks fall to the current use

/// Adds memory that no tensor allocator sees to rank_memory(); negative: gives it back.
void charge_memory(int64_t bytes);

/// Proportional set size of this process in bytes, from the kernel: private pages, and of every
/// shared page the part that falls to this process. 0 where the kernel does not tell.
int64_t proportional_set_bytes();

}  // namespace phalanx
