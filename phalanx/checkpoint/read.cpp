#include "phalanx/checkpoint/read.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/checkpoint/box.h"

namespace phalanx {
namespace {

constexpr int64_t staging_bytes = 8 << 20;  // most that is read at once and then copied out
constexpr int64_t cheap_gap = 4096;         // bytes between two runs that are read along

// A box of a saved part, and the view of this rank's tensor that it fills.
struct Transfer {
  const ManifestEntry::Part* part;
  Box box;  // in the whole tensor
  at::Tensor to;
};

// Where box.size elements lie in the row-major elements of the saved part.
struct Span {
  int64_t first, count, needed, runs;
};

Span span_of(const Box& box, const std::vector<int64_t>& origin,
             const std::vector<int64_t>& strides) {
  Span span{0, 1, 1, 1};
  for (size_t dim = 0; dim < box.size.size(); ++dim) {
    span.first += (box.offset[dim] - origin[dim]) * strides[dim];
    span.count += (box.size[dim] - 1) * strides[dim];
    span.needed *= box.size[dim];
  }
  int64_t run = 1;  // the longest stretch without a gap, from the last dimension upwards
  for (size_t dim = box.size.size(); dim-- > 0 && strides[dim] == run;) run *= box.size[dim];
  span.runs = span.needed / run;
  return span;
}

void read_box(const Reader& file, const ManifestEntry::Part& part, const Box& box,
              const at::Tensor& to, at::Tensor& staging) {
  const std::vector<int64_t> strides =
      part.strides.empty() ? row_major_strides(part.box.size) : part.strides;
  const Span span = span_of(box, part.box.offset, strides);
  const int64_t width = static_cast<int64_t>(to.element_size());
  const int64_t at = part.offset + span.first * width, bytes = span.count * width;
  if (span.count == span.needed && part.strides.empty() && to.is_contiguous() && to.is_cpu()) {
    file.read(to.mutable_data_ptr(), bytes, at);
    return;
  }
  if (bytes <= staging_bytes && (span.count - span.needed) * width <= span.runs * cheap_gap) {
    if (!staging.defined()) staging = at::empty({staging_bytes}, at::kByte);
    file.read(staging.mutable_data_ptr(), bytes, at);
    to.copy_(staging.narrow(0, 0, bytes).view(to.scalar_type()).as_strided(box.size, strides));
    return;
  }
  size_t dim = 0;  // too much at once, or too much between: halves along the outermost dimension
  while (box.size[dim] == 1) ++dim;
  const int64_t half = box.size[dim] / 2;
  Box head = box, tail = box;
  head.size[dim] = half;
  tail.offset[dim] += half, tail.size[dim] -= half;
  read_box(file, part, head, to.narrow(dim, 0, half), staging);
  read_box(file, part, tail, to.narrow(dim, half, tail.size[dim]), staging);
}

std::vector<Transfer> transfers_of(const ReadJob& job) {
  std::vector<Transfer> transfers;
  for (const auto& wanted : job.wanted->parts) {
    int64_t filled = 0;
    for (const auto& saved : job.saved->parts) {
      const auto common = intersection(wanted.box, saved.box);
      if (!common || element_count(common->size) == 0) continue;
      at::Tensor to = wanted.local.detach();
      for (size_t dim = 0; dim < common->size.size(); ++dim)
        to = to.narrow(dim, common->offset[dim] - wanted.box.offset[dim], common->size[dim]);
      filled += to.numel();
      transfers.push_back({&saved, *common, std::move(to)});
    }
    require(filled == element_count(wanted.box.size), ExitCode::checkpoint, job.wanted->name, " (",
            job.wanted->role, ") ", to_string(wanted.box), ": the checkpoint has ", filled,
            " of its elements");
  }
  return transfers;
}

}  // namespace

void read_parts(const Storage& storage, const std::string& folder,
                const std::vector<ReadJob>& jobs) {
  at::NoGradGuard no_grad;
  std::vector<Transfer> transfers;
  for (const auto& job : jobs) {
    auto more = transfers_of(job);
    std::move(more.begin(), more.end(), std::back_inserter(transfers));
  }
  // File after file, front to back: one descriptor, and the disk reads ahead.
  std::stable_sort(transfers.begin(), transfers.end(), [](const auto& a, const auto& b) {
    return std::tie(a.part->file, a.part->offset) < std::tie(b.part->file, b.part->offset);
  });
  std::unique_ptr<Reader> file;
  std::string name;
  at::Tensor staging;
  for (const auto& transfer : transfers) {
    if (!file || name != transfer.part->file) {
      name = transfer.part->file;
      file = storage.open(in_folder(folder, name));
    }
    read_box(*file, *transfer.part, transfer.box, transfer.to, staging);
  }
}

}  // namespace phalanx
