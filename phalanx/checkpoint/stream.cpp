#include "phalanx/checkpoint/stream.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "phalanx/checkpoint/read.h"
#include "phalanx/device/dtype.h"

namespace phalanx {

void stream_tensor(const Source& source, const ManifestEntry& entry, Dtype dtype,
                   const at::Tensor& buffer, const UsePiece& use) {
  const int64_t elements = element_count(entry.shape);
  const int64_t most = buffer.numel() / size_of(dtype);
  ReadCache cache;
  for (int64_t begin = 0; begin < elements; begin += most) {
    const int64_t end = std::min(elements, begin + most);
    const at::Tensor piece =
        buffer.narrow(0, 0, (end - begin) * size_of(dtype)).view(scalar_type(dtype));
    int64_t done = 0;  // a range of elements is a few boxes, each of them contiguous
    StateEntry wanted{entry.name, entry.role, dtype, entry.shape, {}};
    for (const Box& box : boxes_of_range(entry.shape, begin, end)) {
      const int64_t count = element_count(box.size);
      wanted.parts.push_back({box, piece.narrow(0, done, count).view(box.size)});
      done += count;
    }
    read_parts(*source.storage, source.folder, {{&wanted, &entry}}, &cache);
    use(static_cast<const char*>(piece.const_data_ptr()), static_cast<int64_t>(piece.nbytes()));
  }
}

}  // namespace phalanx
