#pragma once

#include <cstdint>

#include "phalanx/checkpoint/pieces.h"
#include "phalanx/checkpoint/source.h"

namespace phalanx {

/// Passes the row-major bytes of a tensor to `use`, from start to end, as elements of `dtype` and
/// in pieces of at most `buffer`'s size (uint8, 1-D), which is used for them. So a tensor larger
/// than memory can be written elsewhere.
void stream_tensor(const Source& source, const ManifestEntry& entry, Dtype dtype,
                   const at::Tensor& buffer, const UsePiece& use);

/// What export and import hold of a tensor at once: with what reading needs, less than 64 MiB.
inline constexpr int64_t stream_buffer_bytes = 32 << 20;

}  // namespace phalanx
