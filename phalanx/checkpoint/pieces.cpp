#include "phalanx/checkpoint/pieces.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace phalanx {
namespace {

// What is hashed is still in the cache when it is written.
constexpr int64_t piece_bytes = 1 << 20;

// Collects runs of bytes; long ones pass without a copy.
class Collector {
 public:
  explicit Collector(const UsePiece& use) : use_(use) {}

  void add(const char* bytes, int64_t count) {
    if (count < piece_bytes / 4) {
      if (static_cast<int64_t>(staged_.size()) + count > piece_bytes) flush();
      staged_.insert(staged_.end(), bytes, bytes + count);
      return;
    }
    flush();
    for (int64_t done = 0; done < count; done += piece_bytes)
      use_(bytes + done, std::min(piece_bytes, count - done));
  }
  void flush() {
    if (!staged_.empty()) use_(staged_.data(), static_cast<int64_t>(staged_.size()));
    staged_.clear();
  }

 private:
  const UsePiece& use_;
  std::vector<char> staged_;
};

// The runs of dimensions [dim, ...), of which those from `dense` on lie without gaps.
void walk(const at::Tensor& tensor, const char* from, int64_t dim, int64_t dense, int64_t run,
          Collector& to) {
  if (dim == dense) {
    to.add(from, run);
    return;
  }
  const int64_t step = tensor.stride(dim) * static_cast<int64_t>(tensor.element_size());
  for (int64_t i = 0; i < tensor.size(dim); ++i)
    walk(tensor, from + i * step, dim + 1, dense, run, to);
}

}  // namespace

void for_each_piece(const at::Tensor& tensor, const UsePiece& use) {
  if (tensor.numel() == 0) return;
  if (!tensor.is_cpu()) return for_each_piece(tensor.cpu(), use);
  int64_t dense = tensor.dim(), elements = 1;
  for (; dense > 0; --dense) {
    if (tensor.size(dense - 1) != 1 && tensor.stride(dense - 1) != elements) break;
    elements *= tensor.size(dense - 1);
  }
  Collector collector(use);
  walk(tensor, static_cast<const char*>(tensor.const_data_ptr()), 0, dense,
       elements * static_cast<int64_t>(tensor.element_size()), collector);
  collector.flush();
}

void for_each_piece(const Reader& file, int64_t offset, int64_t bytes, const UsePiece& use) {
  std::vector<char> buffer(static_cast<size_t>(std::min<int64_t>(bytes, 4 << 20)));
  for (int64_t done = 0; done < bytes;) {
    const int64_t count = std::min(bytes - done, static_cast<int64_t>(buffer.size()));
    file.read(buffer.data(), count, offset + done);
    use(buffer.data(), count);
    done += count;
  }
}

void copy_row_major(const at::Tensor& tensor, char* out) {
  if (tensor.is_cpu() && tensor.is_contiguous()) {
    const char* from = static_cast<const char*>(tensor.const_data_ptr());
    at::parallel_for(0, static_cast<int64_t>(tensor.nbytes()), 8 << 20,
                     [&](int64_t begin, int64_t end) {
                       std::memcpy(out + begin, from + begin, static_cast<size_t>(end - begin));
                     });
    return;
  }
  for_each_piece(tensor, [&](const char* bytes, int64_t count) {
    std::memcpy(out, bytes, static_cast<size_t>(count));
    out += count;
  });
}

}  // namespace phalanx
