#include "phalanx/nn/embedding.h"

#include <ATen/ops/empty.h>

#include "phalanx/kernels/embedding.h"
#include "phalanx/nn/dtype.h"

namespace phalanx {
namespace {

void token_gradient(const Parameter& tokens, const at::Tensor& indices,
                    const at::Tensor& gradient) {
  weight_gradient(tokens, [indices, gradient](const at::Tensor& target, bool accumulate) {
    if (!accumulate) target.zero_();
    with_float_type(target, "embedding", [&](auto type) {
      using T = decltype(type);
      kernels::scatter_rows<T>(gradient.const_data_ptr<T>(), indices.const_data_ptr<int64_t>(),
                               target.mutable_data_ptr<T>(), indices.numel(), target.size(1));
    });
  });
}

void position_gradient(const Parameter& positions, int64_t length, int64_t first_position,
                       const at::Tensor& gradient) {
  weight_gradient(
      positions, [length, first_position, gradient](const at::Tensor& target, bool accumulate) {
        if (!accumulate) target.zero_();
        with_float_type(target, "embedding", [&](auto type) {
          using T = decltype(type);
          kernels::sum_positions<T>(gradient.const_data_ptr<T>(), target.mutable_data_ptr<T>(),
                                    rows_of(gradient), length, first_position, target.size(1));
        });
      });
}

}  // namespace

void check_indices(const at::Tensor& indices, int64_t count, std::string_view what,
                   int64_t besides) {
  require(indices.scalar_type() == at::kLong && indices.is_contiguous(), ExitCode::usage, what,
          " ids must be a contiguous int64 tensor");
  const int64_t* ids = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i)
    require((ids[i] >= 0 && ids[i] < count) || ids[i] == besides, ExitCode::data, what, " id ",
            ids[i], " at place ", i, " of the batch is outside the vocabulary of ", count,
            "; the data was made with another tokenizer, or model.vocab_size is too small");
}

at::Tensor embedding(const at::Tensor& indices, const Parameter& tokens, const Parameter& positions,
                     int64_t first_position) {
  check_indices(indices, tokens->spec.local_shape[0], "token");
  const int64_t length = indices.size(-1), context = positions->spec.local_shape[0];
  require(first_position + length <= context, ExitCode::usage, "a sequence of ",
          first_position + length,
          " tokens is longer than model.max_position_embeddings = ", context,
          "; shorten data.sequence_length or raise it");
  const at::Tensor output = with_float_type(tokens->tensor, "embedding", [&](auto type) {
    using T = decltype(type);
    BelowAutograd below;
    const int64_t hidden = tokens->spec.local_shape[1];
    at::Tensor rows = at::empty({indices.size(0), indices.size(1), hidden},
                                tokens->tensor.options().requires_grad(false));
    kernels::embed<T>(tokens->tensor.const_data_ptr<T>(), positions->tensor.const_data_ptr<T>(),
                      indices.const_data_ptr<int64_t>(), rows.mutable_data_ptr<T>(),
                      indices.numel(), length, first_position, hidden);
    return rows;
  });
  return differentiable(
      "embedding", {}, {tokens, positions}, {indices}, {output},
      [tokens, positions, first_position](const Tensors& saved, const Tensors& gradients,
                                          const std::vector<bool>&) -> Tensors {
        if (!gradients[0].defined()) return {};
        const at::Tensor gradient = gradients[0].contiguous();
        token_gradient(tokens, saved[0], gradient);
        position_gradient(positions, saved[0].size(-1), first_position, gradient);
        return {};
      })[0];
}

}  // namespace phalanx
