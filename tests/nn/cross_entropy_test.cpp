#include "phalanx/nn/cross_entropy.h"

#include "phalanx/base/error.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

TEST(CrossEntropy, EqualsLibTorchAndSkipsIgnoredTargets) {
  for (const int64_t classes : {1, 5, 16, 100, 5000})
    for (const auto type : {at::kDouble, at::kFloat}) {
      SCOPED_TRACE(text(classes, " ", type));
      const double scale = 0.125, tolerance = type == at::kDouble ? 1e-12 : 2e-6;
      const at::Tensor values = at::randn({3, 7, classes}, at::kDouble) * 5 + 100;
      const at::Tensor targets = at::randint(0, classes, {3, 7}, at::kLong);
      targets[1][2] = ignored_target, targets[0][0] = ignored_target;

      const at::Tensor reference = values.to(type).to(at::kDouble).requires_grad_();
      const at::Tensor expected =
          at::cross_entropy_loss(reference.view({21, classes}), targets.view({21}), {},
                                 at::Reduction::Sum, ignored_target);
      (expected * scale).backward();

      const at::Tensor leaf = values.to(type).requires_grad_();
      const Loss loss = cross_entropy(leaf + 0, targets, scale);
      run_backward({loss.scaled}, {at::ones({}, at::kDouble)});
      EXPECT_NEAR(loss.sum, expected.item<double>(), tolerance * std::max(1.0, loss.sum));
      EXPECT_NEAR(loss.scaled.item<double>(), scale * loss.sum, 1e-12 * std::max(1.0, loss.sum));
      expect_close(leaf.grad(), reference.grad(), tolerance);
      EXPECT_EQ(leaf.grad()[1][2].abs().sum().item<double>(), 0);
    }
}

TEST(CrossEntropy, ScalesByTheIncomingGradientAndNeedsNoneInEvaluation) {
  const at::Tensor values = at::randn({4, 9}, at::kDouble);
  const at::Tensor targets = at::randint(0, 9, {4}, at::kLong);
  auto gradient = [&](double factor) {
    const at::Tensor leaf = values.clone().requires_grad_();
    run_backward({cross_entropy(leaf + 0, targets, 1).scaled}, {at::full({}, factor, at::kDouble)});
    return leaf.grad();
  };
  expect_close(gradient(3), gradient(1) * 3, 1e-14);
  const at::Tensor logits = values.clone();
  const GradMode no_grad(false);
  const Loss loss = cross_entropy(logits, targets, 1);
  EXPECT_FALSE(loss.scaled.requires_grad());
  EXPECT_TRUE(at::equal(logits, values)) << "evaluation must leave the logits";
}

TEST(CrossEntropy, PropagatesWhatIsNotANumber) {
  for (const double bad : {std::nan(""), double(INFINITY)})
    for (const int64_t place : {0, 3, 17, 20}) {
      at::Tensor logits = at::randn({2, 21}, at::kFloat);
      logits[0][place] = bad;
      const Loss loss = cross_entropy(logits, at::zeros({2}, at::kLong), 1);
      EXPECT_TRUE(std::isnan(loss.sum)) << bad << " at " << place;
    }
  // A class that is impossible is no fault.
  at::Tensor logits = at::zeros({1, 4}, at::kFloat);
  logits[0][2] = -INFINITY;
  EXPECT_NEAR(cross_entropy(logits, at::zeros({1}, at::kLong), 1).sum, std::log(3), 1e-6);
}

TEST(CrossEntropy, RefusesTargetsOutsideTheClasses) {
  for (const int64_t target : {4, -2}) try {
      cross_entropy(at::zeros({1, 4}), at::full({1}, target, at::kLong), 1);
      ADD_FAILURE() << "accepted " << target;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::data);
      EXPECT_NE(std::string(error.what()).find(text("target id ", target)), std::string::npos);
    }
}

}  // namespace
}  // namespace phalanx
