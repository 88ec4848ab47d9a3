#include "phalanx/autograd/op.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "phalanx/autograd/block.h"
#include "phalanx/autograd/deferred.h"
#include "phalanx/autograd/storage.h"
#include "phalanx/base/text.h"
#include "tests/support/operations.h"

namespace phalanx {
namespace {

Parameter parameter_of(const at::Tensor& values) {
  Parameter parameter = make_parameter(
      whole_parameter("w", "w", values.sizes().vec(), Kind::weight, {}), values.scalar_type());
  attach_storage(parameter->tensor, values);
  return parameter;
}

using testing::matmul;

struct Case {
  at::Tensor x = at::randn({5, 4}, at::kDouble), w1 = at::randn({4, 6}, at::kDouble),
             w2 = at::randn({6, 3}, at::kDouble), dy = at::randn({5, 3}, at::kDouble);
};

struct Expected {
  at::Tensor dx, dw1, dw2;
  explicit Expected(const Case& c) {
    auto x = c.x.clone().requires_grad_(), w1 = c.w1.clone().requires_grad_(),
         w2 = c.w2.clone().requires_grad_();
    at::mm(at::gelu(at::mm(x, w1)), w2).backward(c.dy);
    dx = x.grad(), dw1 = w1.grad(), dw2 = w2.grad();
  }
};

void expect_close(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_TRUE(a.defined());
  EXPECT_LT((a - b).norm().item<double>(), 1e-12 * b.norm().item<double>());
}

TEST(Op, GradientsAreExactForWholeAndSplitBackwardWithAndWithoutRecompute) {
  const Case c;
  const Expected expected(c);
  for (bool again : {false, true})
    for (bool split : {false, true})
      for (int passes : {1, 2}) {
        SCOPED_TRACE(text("recompute ", again, " split ", split, " passes ", passes));
        auto w1 = parameter_of(c.w1), w2 = parameter_of(c.w2);
        auto x = c.x.clone().requires_grad_();
        auto function = [&](const Tensors& in) -> Tensors {
          return {matmul(at::gelu(matmul(in[0], w1)), w2)};
        };
        DeferredGradients queue;
        for (int pass = 0; pass < passes; ++pass) {
          auto y = again ? recompute({x}, function)[0] : function({x})[0];
          if (split) {
            DeferredGradients::Scope scope(queue);
            run_backward({y}, {c.dy});
            EXPECT_FALSE(queue.empty());
          } else {
            run_backward({y}, {c.dy});
          }
          queue.run();
        }
        expect_close(x.grad(), expected.dx * passes);
        expect_close(w1->tensor.grad(), expected.dw1 * passes);
        expect_close(w2->tensor.grad(), expected.dw2 * passes);
      }
}

TEST(Op, AParameterAloneMakesItsOutputNeedAGradientAndAFrozenOneDoesNot) {
  const Case c;
  auto w = parameter_of(c.w1);
  auto y = matmul(c.x, w);
  EXPECT_TRUE(y.requires_grad());
  run_backward({y}, {at::ones_like(y)});
  expect_close(w->tensor.grad(), at::mm(c.x.t(), at::ones_like(y)));
  w->spec.trainable = false;
  EXPECT_FALSE(matmul(c.x, w).requires_grad());
  w->spec.trainable = true;
  GradMode off(false);
  EXPECT_FALSE(matmul(c.x, w).requires_grad());
}

TEST(Op, ASecondBackwardThroughTheSameGraphIsRefused) {
  const Case c;
  auto w = parameter_of(c.w1);
  auto y = matmul(c.x, w);
  run_backward({y}, {at::ones_like(y)});
  EXPECT_ANY_THROW(run_backward({y}, {at::ones_like(y)}));
}

TEST(Boundary, FiresOnceWhenAllGradientsHaveArrivedAndPassesThemOn) {
  auto a = at::randn({3}, at::kDouble).requires_grad_(), b = at::randn({3}, at::kDouble);
  auto d = at::randn({3}, at::kDouble).requires_grad_();
  int fired = 0;
  auto out = boundary({a, b, d}, [&] { ++fired; });
  EXPECT_FALSE(out[1].requires_grad());
  (out[0] * out[0] + out[1] + 3 * out[2]).sum().backward();
  EXPECT_EQ(fired, 1);
  expect_close(a.grad(), 2 * a.detach());
  expect_close(d.grad(), at::full({3}, 3, at::kDouble));
}

TEST(Storage, AParameterWithoutMemoryThrowsWithItsName) {
  auto parameter =
      make_parameter(whole_parameter("ghost", "ghost", {2, 2}, Kind::weight, {}), at::kDouble);
  try {
    (void)at::mm(parameter->tensor, at::ones({2, 2}, at::kDouble));
    FAIL() << "touched a parameter without memory";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("ghost"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace phalanx
