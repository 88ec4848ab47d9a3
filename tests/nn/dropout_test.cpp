#include "phalanx/nn/dropout.h"

#include "phalanx/nn/attention.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

Context context_at(int64_t first_sample, int64_t first_position = 0, int64_t step = 3) {
  Context context;
  context.seed = 9;
  context.step = step;
  context.sequence = {first_sample, first_position};
  return context;
}

TEST(Dropout, DependsOnTheElementOnly) {
  const at::Tensor x = at::ones({6, 8, 37}, at::kDouble);
  const at::Tensor all = dropout(x, 0.25, "site", context_at(0));
  const at::Tensor rows = dropout(x.narrow(0, 4, 2), 0.25, "site", context_at(4));
  EXPECT_TRUE(at::equal(rows, all.narrow(0, 4, 2)));
  const at::Tensor late = dropout(x.narrow(1, 3, 5).contiguous(), 0.25, "site", context_at(0, 3));
  EXPECT_TRUE(at::equal(late, all.narrow(1, 3, 5)));
  EXPECT_FALSE(at::equal(dropout(x, 0.25, "other", context_at(0)), all));
  EXPECT_FALSE(at::equal(dropout(x, 0.25, "site", context_at(0, 0, 4)), all));
  EXPECT_FALSE(at::equal(all[0], all[1]));
  EXPECT_TRUE(((all == 0).logical_or((all - 4.0 / 3).abs() < 1e-12)).all().item<bool>());
}

TEST(Dropout, DropsTheRightShareAndKeepsTheMean) {
  const at::Tensor x = at::ones({4, 250, 400}, at::kFloat);
  const at::Tensor y = dropout(x, 0.1, "site", context_at(0));
  EXPECT_NEAR((y == 0).to(at::kDouble).mean().item<double>(), 0.1, 0.003);
  EXPECT_NEAR(y.to(at::kDouble).mean().item<double>(), 1, 0.003);
  EXPECT_TRUE(dropout(x, 0, "site", context_at(0)).is_same(x));
  Context evaluation = context_at(0);
  evaluation.training = false;
  EXPECT_TRUE(dropout(x, 0.5, "site", evaluation).is_same(x));
}

TEST(Dropout, BackwardUsesTheSameMask) {
  OperationCase c;
  c.inputs = {at::randn({2, 3, 10}, at::kDouble)};
  const at::Tensor mask = dropout(at::ones({2, 3, 10}, at::kDouble), 0.5, "site", context_at(0));
  c.ours = [](const Tensors& in, const std::vector<Parameter>&) -> Tensors {
    return {dropout(in[0], 0.5, "site", context_at(0))};
  };
  c.expected = [=](const Tensors& in, const Tensors&) -> Tensors { return {in[0] * mask}; };
  check_operation(c);
}

TEST(Dropout, AttentionDropsProbabilities) {
  const int64_t batch = 2, time = 6, heads = 3, size = 4;
  OperationCase c;
  c.inputs = {at::randn({batch, time, 3 * heads * size}, at::kDouble)};
  c.ours = [=](const Tensors& in, const std::vector<Parameter>&) -> Tensors {
    return {causal_attention(in[0], heads, 0.3, "site", context_at(1))};
  };
  // The mask of probability [b, h, i, j] is that of dropout() for sample (1 + b) heads + h.
  const at::Tensor mask =
      dropout(at::ones({batch * heads, time, time}, at::kDouble), 0.3, "site", context_at(heads))
          .view({batch, heads, time, time});
  c.expected = [=](const Tensors& in, const Tensors&) -> Tensors {
    const auto parts = in[0].view({batch, time, 3, heads, size}).permute({2, 0, 3, 1, 4}).unbind();
    const at::Tensor scores = at::matmul(parts[0], parts[1].transpose(2, 3)) / 2;
    const at::Tensor future = at::ones({time, time}, at::kBool).triu(1);
    const at::Tensor p = at::softmax(scores.masked_fill(future, -INFINITY), -1) * mask;
    return {at::matmul(p, parts[2]).transpose(1, 2).reshape({batch, time, heads * size})};
  };
  check_operation(c);
}

}  // namespace
}  // namespace phalanx
