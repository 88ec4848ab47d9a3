#include "phalanx/nn/init.h"

#include "phalanx/base/random.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

at::Tensor initial(const ParameterSpec& spec, int64_t begin, int64_t end,
                   at::ScalarType type = at::kFloat) {
  at::Tensor out = at::full({end - begin}, 77, type);
  initialize(spec, 5, begin, end, out);
  return out;
}

ParameterSpec weight(const std::string& name, std::vector<int64_t> shape) {
  return whole_parameter("w", name, std::move(shape), Kind::weight, {Init::Rule::normal, 0.1});
}

TEST(Init, RangesAreCutsOfTheWhole) {
  const ParameterSpec spec = weight("a", {7, 5});
  const at::Tensor all = initial(spec, 0, 35);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 35}, {3, 3}, {4, 17}, {34, 35}})
    EXPECT_TRUE(at::equal(initial(spec, begin, end), all.narrow(0, begin, end - begin)));
  EXPECT_TRUE(at::equal(initial(spec, 0, 35, at::kDouble).to(at::kFloat), all));
  EXPECT_TRUE(at::equal(initial(spec, 0, 35, at::kBFloat16), all.to(at::kBFloat16)));
  EXPECT_FALSE(at::equal(initial(weight("b", {7, 5}), 0, 35), all));
  EXPECT_NEAR(initial(weight("large", {100000}), 0, 100000).std().item<double>(), 0.1, 1e-3);
}

TEST(Init, PartsOfATensorGetTheValuesOfTheWhole) {
  // Columns [2, 4) of one tensor and rows [1, 3) of another, side by side in one local parameter.
  const at::Tensor left = initial(weight("left", {2, 9}), 0, 18).view({2, 9});
  const at::Tensor right = initial(weight("right", {4, 3}), 0, 12).view({4, 3});
  ParameterSpec spec = weight("", {2, 5});
  spec.pieces = {{"left", {2, 9}, {{0, 2}, {2, 2}}, {{0, 0}, {2, 2}}},
                 {"right", {4, 3}, {{1, 0}, {2, 3}}, {{0, 2}, {2, 3}}}};
  const at::Tensor expected =
      at::cat({left.narrow(1, 2, 2), right.narrow(0, 1, 2)}, 1).reshape({10});
  for (int64_t begin = 0; begin <= 10; ++begin)
    for (int64_t end = begin; end <= 10; ++end)
      ASSERT_TRUE(at::equal(initial(spec, begin, end), expected.narrow(0, begin, end - begin)))
          << begin << " " << end;
}

TEST(Init, GivesMemoryAndConstants) {
  const Parameter norm = make_parameter(
      whole_parameter("n", "n", {4}, Kind::norm, {Init::Rule::constant, 1}), at::kDouble);
  allocate_and_initialize({norm}, 1);
  EXPECT_TRUE(at::equal(norm->tensor.detach(), at::ones({4}, at::kDouble)));
  EXPECT_TRUE(norm->tensor.requires_grad());
}

}  // namespace
}  // namespace phalanx
