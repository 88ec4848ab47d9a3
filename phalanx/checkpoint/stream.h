#pragma once

#include <cstdint>
#include <functional>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

/// Takes the next bytes of a tensor's row-major elements.
using ByteSink = std::function<void(const void* data, int64_t bytes)>;

/// A tensor from start to end, as elements of `dtype`, in pieces of at most `buffer`'s size (uint8,
/// 1-D), which is used for them. So a tensor larger than memory can be written elsewhere.
void stream_tensor(const Source& source, const ManifestEntry& entry, Dtype dtype,
                   const at::Tensor& buffer, const ByteSink& sink);

/// What export and import hold of a tensor at once: with what reading needs, less than 64 MiB.
inline constexpr int64_t stream_buffer_bytes = 32 << 20;

}  // namespace phalanx
