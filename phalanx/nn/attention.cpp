#include "phalanx/nn/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

#include "phalanx/base/error.h"
#include "phalanx/kernels/dropout.h"
#include "phalanx/nn/dropout.h"
#include "phalanx/nn/dtype.h"

namespace phalanx {
namespace {

// One of queries, keys and values as [batch, heads, time, head size], without a copy.
at::Tensor part_of(const at::Tensor& packed, int64_t part, int64_t heads) {
  const int64_t hidden = packed.size(2) / 3;
  return packed.narrow(2, part * hidden, hidden)
      .view({packed.size(0), packed.size(1), heads, hidden / heads})
      .transpose(1, 2);
}

// [batch, heads, time, head size] as [batch, time, hidden]; no copy if the memory lies that way.
at::Tensor merged(const at::Tensor& heads) {
  return heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), -1});
}
at::Tensor split_heads(const at::Tensor& hidden, int64_t heads) {
  return hidden.view({hidden.size(0), hidden.size(1), heads, hidden.size(2) / heads})
      .transpose(1, 2);
}

at::Tensor packed_gradient(const at::Tensor& packed, int64_t heads, const at::Tensor& queries,
                           const at::Tensor& keys, const at::Tensor& values) {
  at::Tensor gradient = at::empty(packed.sizes(), packed.options());
  part_of(gradient, 0, heads).copy_(queries);
  part_of(gradient, 1, heads).copy_(keys);
  part_of(gradient, 2, heads).copy_(values);
  return gradient;
}

at::Tensor flash_attention(const at::Tensor& packed, int64_t heads) {
  at::Tensor output, log_sums;
  {
    BelowAutograd below;
    std::tie(output, log_sums) = at::_scaled_dot_product_flash_attention_for_cpu(
        part_of(packed, 0, heads), part_of(packed, 1, heads), part_of(packed, 2, heads), 0.0, true);
    output = merged(output);
  }
  return differentiable(
      "flash_attention", {packed}, {}, {packed, output, log_sums}, {output},
      [heads](const Tensors& saved, const Tensors& gradients, const std::vector<bool>&) -> Tensors {
        if (!gradients[0].defined()) return {at::Tensor()};
        const auto [queries, keys, values] =
            at::_scaled_dot_product_flash_attention_for_cpu_backward(
                split_heads(gradients[0].contiguous(), heads), part_of(saved[0], 0, heads),
                part_of(saved[0], 1, heads), part_of(saved[0], 2, heads),
                split_heads(saved[1], heads), saved[2], 0.0, true);
        return {packed_gradient(saved[0], heads, queries, keys, values)};
      })[0];
}

// Dropout on probabilities [batch, heads, time, time]; a sample's heads follow each other.
struct AttentionDropout {
  RandomKey key;
  double probability;
  SequenceMap map;
  at::Tensor operator()(const at::Tensor& probabilities) const {
    return with_float_type(probabilities, "attention dropout", [&](auto type) {
      using T = decltype(type);
      const at::Tensor x = probabilities.contiguous();
      at::Tensor y = at::empty(x.sizes(), x.options());
      kernels::dropout<T>(x.const_data_ptr<T>(), y.mutable_data_ptr<T>(), key, probability,
                          rows_of(x), x.size(2), map.first_sample * x.size(1), map.first_position,
                          x.size(3));
      return y;
    });
  }
};

Tensors dropout_attention_backward(const AttentionDropout& drop, int64_t heads,
                                   const at::Tensor& packed, const at::Tensor& probabilities,
                                   const at::Tensor& output_gradient) {
  const double scale = 1 / std::sqrt(double(packed.size(2) / 3 / heads));
  const at::Tensor gradient = split_heads(output_gradient.contiguous(), heads);
  const at::Tensor values = at::matmul(drop(probabilities).transpose(2, 3), gradient);
  const at::Tensor dropped = drop(at::matmul(gradient, part_of(packed, 2, heads).transpose(2, 3)));
  const at::Tensor weighted = dropped * probabilities;
  const at::Tensor scores = (weighted - probabilities * weighted.sum(-1, true)) * scale;
  return {packed_gradient(packed, heads, at::matmul(scores, part_of(packed, 1, heads)),
                          at::matmul(scores.transpose(2, 3), part_of(packed, 0, heads)), values)};
}

at::Tensor dropout_attention(const at::Tensor& packed, int64_t heads,
                             const AttentionDropout& drop) {
  at::Tensor output, probabilities;
  {
    BelowAutograd below;
    const int64_t time = packed.size(1);
    const at::Tensor scores =
        at::matmul(part_of(packed, 0, heads), part_of(packed, 1, heads).transpose(2, 3)) /
        std::sqrt(double(packed.size(2) / 3 / heads));
    const at::Tensor future = at::ones({time, time}, scores.options().dtype(at::kBool)).triu(1);
    probabilities =
        at::softmax(scores.masked_fill(future, -std::numeric_limits<double>::infinity()), -1);
    output = merged(at::matmul(drop(probabilities), part_of(packed, 2, heads)));
  }
  return differentiable("dropout_attention", {packed}, {}, {packed, probabilities}, {output},
                        [heads, drop](const Tensors& saved, const Tensors& gradients,
                                      const std::vector<bool>&) -> Tensors {
                          if (!gradients[0].defined()) return {at::Tensor()};
                          return dropout_attention_backward(drop, heads, saved[0], saved[1],
                                                            gradients[0]);
                        })[0];
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& packed, int64_t heads, double dropout_probability,
                            std::string_view site, const Context& context) {
  require(packed.dim() == 3 && packed.size(2) % (3 * heads) == 0, ExitCode::usage, "attention ",
          site, ": packed queries, keys and values are [", join(packed.sizes()),
          "], want [batch, time, a multiple of 3 x ", heads, "]");
  if (dropout_probability == 0 || !context.training) return flash_attention(packed, heads);
  return dropout_attention(packed, heads,
                           {dropout_key(site, context), dropout_probability, context.sequence});
}

at::Tensor cached_attention(const at::Tensor& packed, const at::Tensor& cache, int64_t length,
                            int64_t heads) {
  const BelowAutograd below;
  const int64_t time = packed.size(1);
  cache.narrow(1, length, time).copy_(packed);
  const at::Tensor seen = cache.narrow(1, 0, length + time);
  const auto result = at::_scaled_dot_product_flash_attention_for_cpu(
      part_of(packed, 0, heads), part_of(seen, 1, heads), part_of(seen, 2, heads), 0.0,
      /*is_causal=*/time > 1);
  return merged(std::get<0>(result));
}

}  // namespace phalanx
