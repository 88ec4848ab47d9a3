#include "phalanx/checkpoint/read_ahead.h"

#include <algorithm>
#include <cstring>

namespace phalanx {
namespace {

constexpr int64_t small = 256 << 10, first_block = 64 << 10, largest_block = 2 << 20;

}  // namespace

ReadAhead::ReadAhead(std::unique_ptr<Reader> from) : from_(std::move(from)), ahead_(first_block) {}

void ReadAhead::fill(int64_t bytes, int64_t offset) const {
  const bool near = offset >= last_end_ && offset - last_end_ <= small;
  ahead_ = near ? std::min(2 * ahead_, largest_block) : first_block;
  block_.resize(std::min(std::max(ahead_, bytes), size() - offset));
  begin_ = offset;
  try {
    from_->read(block_.data(), static_cast<int64_t>(block_.size()), offset);
  } catch (...) {
    block_.clear();
    throw;
  }
}

void ReadAhead::read(void* out, int64_t bytes, int64_t offset) const {
  const bool inside = bytes >= 0 && offset >= 0 && offset <= size() && bytes <= size() - offset;
  if (bytes > small || !inside) {
    from_->read(out, bytes, offset);  // or its error
  } else if (bytes > 0) {
    if (offset < begin_ || offset + bytes > begin_ + static_cast<int64_t>(block_.size()))
      fill(bytes, offset);
    std::memcpy(out, block_.data() + (offset - begin_), bytes);
  }
  last_end_ = offset + bytes;
}

}  // namespace phalanx
