#include "phalanx/checkpoint/read.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
namespace {

constexpr int64_t staging_bytes = 8 << 20;  // most that is held at once before it is copied out
// Runs are read one by one, unless what lies between them is at most a twentieth of them, or run
// and gap together are no more than a disk reads anyway.
constexpr int64_t waste_share = 20;
constexpr int64_t smallest_read = 512;  // bytes

// A box of a saved part, and the view of this rank's tensor that it fills.
struct Transfer {
  const ManifestEntry::Part* part;
  at::ScalarType dtype;  // as saved
  Box box;               // in the whole tensor
  at::Tensor to;
};

// How a box lies in the file: `units` equal stretches, each read at once. Counts are elements.
struct Stretches {
  int64_t first;                 // of the part's elements
  int64_t span = 1, needed = 1;  // of one unit: from its first to its last element, and of the box
  int64_t units = 1;
  std::vector<size_t> outer;            // dimensions that count units, the slowest first
  std::vector<int64_t> staged_strides;  // of the box in staging, where units lie side by side
};

Stretches stretches_of(const Box& box, const std::vector<int64_t>& origin,
                       const std::vector<int64_t>& strides, int64_t width) {
  const size_t dims = box.size.size();
  std::vector<size_t> order;  // the fastest dimension first; those of size 1 do not matter
  Stretches found{0};
  for (size_t dim = 0; dim < dims; ++dim) {
    found.first += (box.offset[dim] - origin[dim]) * strides[dim];
    if (box.size[dim] > 1) order.push_back(dim);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  found.staged_strides.assign(dims, 0);
  size_t next = 0;
  for (; next < order.size(); ++next) {  // a unit grows as long as little is read for nothing
    const int64_t size = box.size[order[next]], stride = strides[order[next]];
    const int64_t span = (size - 1) * stride + found.span, needed = found.needed * size;
    const bool cheap = (span - needed) * waste_share <= needed || stride * width <= smallest_read;
    if (!cheap) break;
    found.span = span, found.needed = needed;
    found.staged_strides[order[next]] = stride;
  }
  for (; next < order.size(); ++next) {
    found.staged_strides[order[next]] = found.span * found.units;
    found.units *= box.size[order[next]];
    found.outer.insert(found.outer.begin(), order[next]);
  }
  return found;
}

// Reads every unit of the box to its place in staging.
void read_units(const Reader& file, const Stretches& stretches, const Box& box,
                const std::vector<int64_t>& strides, int64_t begin, int64_t width, char* staging) {
  std::vector<int64_t> index(stretches.outer.size(), 0);
  for (int64_t unit = 0; unit < stretches.units; ++unit) {
    int64_t first = stretches.first;
    for (size_t i = 0; i < index.size(); ++i) first += index[i] * strides[stretches.outer[i]];
    file.read(staging + unit * stretches.span * width, stretches.span * width,
              begin + first * width);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < box.size[stretches.outer[i]]) break;
      index[i] = 0;
    }
  }
}

// Whether the box's elements lie side by side in the file, in row-major order.
bool row_major(const Box& box, const std::vector<int64_t>& strides) {
  int64_t expected = 1;
  for (size_t dim = box.size.size(); dim-- > 0;) {
    if (box.size[dim] > 1 && strides[dim] != expected) return false;
    expected *= box.size[dim];
  }
  return true;
}

// The dimension along which a box is halved when it is too much at once.
size_t slowest(const Box& box, const std::vector<int64_t>& strides) {
  size_t found = 0;
  for (size_t dim = 0; dim < box.size.size(); ++dim)
    if (box.size[dim] > 1 && (box.size[found] == 1 || strides[dim] > strides[found])) found = dim;
  return found;
}

void read_box(const Reader& file, const Transfer& transfer, const std::vector<int64_t>& strides,
              const Box& box, const at::Tensor& to, at::Tensor& staging) {
  const ManifestEntry::Part& part = *transfer.part;
  const auto width = static_cast<int64_t>(c10::elementSize(transfer.dtype));
  if (to.scalar_type() == transfer.dtype && to.is_cpu() && to.is_contiguous() &&
      row_major(box, strides)) {
    int64_t first = 0;
    for (size_t dim = 0; dim < box.size.size(); ++dim)
      first += (box.offset[dim] - part.box.offset[dim]) * strides[dim];
    file.read(to.mutable_data_ptr(), to.numel() * width, part.offset + first * width);
    return;
  }
  const Stretches stretches = stretches_of(box, part.box.offset, strides, width);
  const int64_t bytes = stretches.units * stretches.span * width;
  if (bytes <= staging_bytes) {
    if (!staging.defined()) staging = at::empty({staging_bytes}, at::kByte);
    read_units(file, stretches, box, strides, part.offset, width,
               static_cast<char*>(staging.mutable_data_ptr()));
    to.copy_(staging.narrow(0, 0, bytes)
                 .view(transfer.dtype)
                 .as_strided(box.size, stretches.staged_strides));
    return;
  }
  const size_t dim = slowest(box, strides);
  const int64_t half = box.size[dim] / 2;
  Box head = box, tail = box;
  head.size[dim] = half;
  tail.offset[dim] += half, tail.size[dim] -= half;
  const auto cut = static_cast<int64_t>(dim);
  read_box(file, transfer, strides, head, to.narrow(cut, 0, half), staging);
  read_box(file, transfer, strides, tail, to.narrow(cut, half, tail.size[dim]), staging);
}

std::vector<Transfer> transfers_of(const ReadJob& job) {
  std::vector<Transfer> transfers;
  for (const auto& wanted : job.wanted->parts) {
    int64_t filled = 0;
    for (const auto& saved : job.saved->parts) {
      const auto common = intersection(wanted.box, saved.box);
      if (!common || element_count(common->size) == 0) continue;
      at::Tensor to = view_of(wanted.local.detach(), wanted.box, *common);
      filled += to.numel();
      transfers.push_back({&saved, scalar_type(job.saved->dtype), *common, std::move(to)});
    }
    require(filled == element_count(wanted.box.size), ExitCode::checkpoint, job.wanted->name, " (",
            job.wanted->role, ") ", to_string(wanted.box), ": the checkpoint has ", filled,
            " of its elements");
  }
  return transfers;
}

}  // namespace

void read_parts(const Storage& storage, const std::string& folder, const std::vector<ReadJob>& jobs,
                ReadCache* cache) {
  at::NoGradGuard no_grad;
  ReadCache own;
  auto& [open, file, staging] = cache ? *cache : own;
  std::vector<Transfer> transfers;
  for (const auto& job : jobs) {
    require(convertible(job.saved->dtype, job.wanted->dtype), ExitCode::checkpoint,
            job.wanted->name, " (", job.wanted->role, ") is ", name(job.saved->dtype), ", wanted ",
            name(job.wanted->dtype), "; only floating-point types are converted");
    auto more = transfers_of(job);
    std::move(more.begin(), more.end(), std::back_inserter(transfers));
  }
  // File after file, front to back: one descriptor, and the disk reads ahead.
  std::stable_sort(transfers.begin(), transfers.end(), [](const auto& a, const auto& b) {
    return std::tie(a.part->file, a.part->offset) < std::tie(b.part->file, b.part->offset);
  });
  for (const auto& transfer : transfers) {
    const auto& part = *transfer.part;
    if (!file || open != part.file) {
      file = storage.open(in_folder(folder, part.file));
      open = part.file;
    }
    const auto strides = part.strides.empty() ? row_major_strides(part.box.size) : part.strides;
    read_box(*file, transfer, strides, transfer.box, transfer.to, staging);
  }
}

bool convertible(Dtype from, Dtype to) {
  return from == to || (is_floating_point(from) && is_floating_point(to));
}

}  // namespace phalanx
