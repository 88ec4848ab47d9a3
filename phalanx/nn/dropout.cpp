#include "phalanx/nn/dropout.h"

#include <ATen/ops/empty.h>

#include "phalanx/base/text.h"
#include "phalanx/kernels/dropout.h"
#include "phalanx/nn/dtype.h"

namespace phalanx {
namespace {

at::Tensor masked(const at::Tensor& input, double probability, RandomKey key,
                  const SequenceMap& map) {
  return with_float_type(input, "dropout", [&](auto type) {
    using T = decltype(type);
    BelowAutograd below;
    const at::Tensor x = input.contiguous();
    at::Tensor y = at::empty(x.sizes(), x.options());
    kernels::dropout<T>(x.const_data_ptr<T>(), y.mutable_data_ptr<T>(), key, probability,
                        rows_of(x), x.size(-2), map.first_sample, map.first_position, x.size(-1));
    return y;
  });
}

}  // namespace

RandomKey dropout_key(std::string_view site, const Context& context) {
  return random_key(context.seed, text("dropout ", site), uint64_t(context.step));
}

at::Tensor dropout(const at::Tensor& input, double probability, std::string_view site,
                   const Context& context) {
  if (probability == 0 || !context.training) return input;
  const RandomKey key = dropout_key(site, context);
  const SequenceMap map = context.sequence;
  return differentiable("dropout", {input}, {}, {}, {masked(input, probability, key, map)},
                        [probability, key, map](const Tensors&, const Tensors& gradients,
                                                const std::vector<bool>&) -> Tensors {
                          if (!gradients[0].defined()) return {at::Tensor()};
                          return {masked(gradients[0], probability, key, map)};
                        })[0];
}

}  // namespace phalanx
