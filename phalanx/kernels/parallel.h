#pragma once

#include <cstdint>
#include <functional>

namespace phalanx {

/// Threads that kernels may use now: LibTorch's setting (at::set_num_threads), 1 inside a parallel
/// region.
int kernel_threads();

/// Calls `body(first, last)` for contiguous parts that cover [begin, end), on LibTorch's own pool
/// of threads. Parts hold at least `grain` indices; with one part or one thread `body` runs here.
/// `body` must not throw.
void parallel_for(int64_t begin, int64_t end, int64_t grain,
                  const std::function<void(int64_t first, int64_t last)>& body);

}  // namespace phalanx
