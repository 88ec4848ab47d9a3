#include "phalanx/nn/init.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "phalanx/autograd/storage.h"
#include "phalanx/base/random.h"
#include "phalanx/kernels/parallel.h"
#include "phalanx/nn/dtype.h"

namespace phalanx {
namespace {

constexpr int64_t grain = 1 << 15;  // elements worth a thread

template <class T>
void fill(const Init& init, RandomKey key, int64_t global, int64_t count, T* out) {
  if (init.rule == Init::Rule::constant)
    std::fill(out, out + count, T(init.value));
  else
    fill_normal(key, uint64_t(global), count, init.value, out);
}

// The part of `box` that lies in `piece.local`, row by row: body(local index, global index, count).
template <class Body>
void for_rows(const ParameterSpec& parameter, const Piece& piece, const Box& box,
              const Body& body) {
  const size_t dims = parameter.local_shape.size();
  std::vector<int64_t> low(dims), high(dims);
  for (size_t d = 0; d < dims; ++d) {
    low[d] = std::max(box.offset[d], piece.local.offset[d]);
    high[d] = std::min(box.offset[d] + box.size[d], piece.local.offset[d] + piece.local.size[d]);
    if (low[d] >= high[d]) return;
  }
  std::vector<int64_t> at = low;
  for (;;) {
    int64_t local = 0, global = 0;
    for (size_t d = 0; d < dims; ++d) {
      local = local * parameter.local_shape[d] + at[d];
      global =
          global * piece.global_shape[d] + at[d] - piece.local.offset[d] + piece.global.offset[d];
    }
    body(local, global, dims ? high[dims - 1] - low[dims - 1] : 1);
    if (dims < 2) return;
    size_t d = dims - 1;
    while (d > 0 && ++at[d - 1] == high[d - 1]) at[d - 1] = low[d - 1], --d;
    if (d == 0) return;
  }
}

template <class T>
void initialize_as(const ParameterSpec& parameter, uint64_t seed, int64_t begin, int64_t end,
                   T* out) {
  const Box all = whole_box(parameter.local_shape);
  for (const Piece& piece : parameter.pieces) {
    const RandomKey key = random_key(seed, piece.name);
    const bool whole = piece.local == all && piece.global == whole_box(piece.global_shape);
    if (whole) {
      parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
        fill(parameter.init, key, first, last - first, out + (first - begin));
      });
      continue;
    }
    for (const Box& box : boxes_of_range(parameter.local_shape, begin, end))
      for_rows(parameter, piece, box, [&](int64_t local, int64_t global, int64_t count) {
        fill(parameter.init, key, global, count, out + (local - begin));
      });
  }
}

}  // namespace

void initialize(const ParameterSpec& parameter, uint64_t seed, int64_t begin, int64_t end,
                const at::Tensor& out) {
  require(out.is_contiguous() && out.numel() >= end - begin, ExitCode::usage, "initial values of ",
          parameter.name, ": ", end - begin, " elements do not fit a tensor of ", out.numel());
  if (out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble)
    return with_float_type(out, "initialization", [&](auto type) {
      initialize_as(parameter, seed, begin, end, out.mutable_data_ptr<decltype(type)>());
    });
  const at::Tensor exact = at::empty({end - begin}, at::TensorOptions().dtype(at::kFloat));
  initialize_as(parameter, seed, begin, end, exact.mutable_data_ptr<float>());
  out.view({-1}).narrow(0, 0, end - begin).copy_(exact);
}

void allocate_and_initialize(const std::vector<Parameter>& parameters, uint64_t seed) {
  for (const Parameter& parameter : parameters) {
    const int64_t count = element_count(parameter->spec.local_shape);
    const at::Tensor memory =
        at::empty({count}, at::TensorOptions().dtype(parameter->tensor.scalar_type()));
    initialize(parameter->spec, seed, 0, count, memory);
    attach_storage(parameter->tensor, memory);
  }
}

}  // namespace phalanx
