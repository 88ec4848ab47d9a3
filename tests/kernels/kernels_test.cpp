#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>

#include "phalanx/kernels/bias_gelu.h"
#include "phalanx/kernels/cross_entropy.h"
#include "phalanx/kernels/embedding.h"
#include "phalanx/kernels/layer_norm.h"
#include "phalanx/kernels/parallel.h"
#include "phalanx/kernels/residual.h"
#include "phalanx/kernels/sum_of_squares.h"
#include "phalanx/kernels/vector.h"

namespace phalanx::kernels {
namespace {

// Sizes around one vector and one chunk of rows.
constexpr std::pair<int64_t, int64_t> sizes[] = {{1, 1}, {3, 15}, {64, 16}, {65, 17}, {129, 100}};

at::Tensor random(int64_t rows, int64_t columns) { return at::randn({rows, columns}, at::kFloat); }
const float* in(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }
float* out(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

// Every kernel of this room on the same data, with a given number of threads.
std::vector<at::Tensor> run_all(int threads, int64_t rows, int64_t columns) {
  at::manual_seed(rows * 1000 + columns);
  at::set_num_threads(threads);
  const at::Tensor x = random(rows, columns), y = random(rows, columns), bias = random(1, columns),
                   weight = random(1, columns);
  const at::Tensor ids = at::randint(0, columns, {rows}, at::kLong);
  std::vector<at::Tensor> results;
  auto fresh = [&](at::IntArrayRef shape) {
    results.push_back(at::zeros(shape, at::kFloat));
    return out(results.back());
  };
  bias_gelu(in(x), in(bias), fresh({rows, columns}), rows, columns);
  float* gradient = fresh({rows, columns});
  bias_gelu_backward(in(y), in(x), in(bias), gradient, fresh({columns}), rows, columns);
  add_bias(in(x), in(y), in(bias), fresh({rows, columns}), rows, columns);
  column_sums(in(x), fresh({columns}), rows, columns);
  LayerNorm<float> norm{in(x), in(y), in(bias), in(weight), in(bias)};
  norm.stream = fresh({rows, columns}), norm.output = fresh({rows, columns});
  norm.statistics = fresh({rows, 2});
  norm.rows = rows, norm.columns = columns, norm.epsilon = 1e-5;
  layer_norm(norm);
  LayerNormBackward<float> backward{in(x), in(y), norm.stream, norm.statistics, in(weight)};
  backward.input_gradient = fresh({rows, columns}), backward.weight_gradient = fresh({columns});
  backward.bias_gradient = fresh({columns}), backward.branch_bias_gradient = fresh({columns});
  backward.rows = rows, backward.columns = columns;
  layer_norm_backward(backward);
  const at::Tensor logits = x.clone(), losses = at::empty({rows}, at::kDouble);
  cross_entropy(out(logits), ids.const_data_ptr<int64_t>(), -1, 0.5, true,
                losses.mutable_data_ptr<double>(), rows, columns);
  results.push_back(logits), results.push_back(losses);
  const at::Tensor places = ids.clamp(0, rows - 1);
  scatter_rows(in(x), places.const_data_ptr<int64_t>(), fresh({rows, columns}), rows, columns);
  sum_positions(in(x), fresh({rows, columns}), rows, (rows + 1) / 2, 0, columns);
  return results;
}

TEST(Kernels, GiveTheSameBitsForAnyNumberOfThreads) {
  for (const auto& [rows, columns] : sizes) {
    const auto one = run_all(1, rows, columns), two = run_all(2, rows, columns);
    at::set_num_threads(1);
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(at::equal(one[i], two[i]))
          << "result " << i << " of " << rows << " x " << columns;
  }
}

void expect_near(const at::Tensor& ours, const at::Tensor& exact, double tolerance) {
  const at::Tensor error = (ours.to(at::kDouble) - exact).abs();
  EXPECT_LT((error / (exact.abs() + 1)).max().item<double>(), tolerance);
}

TEST(Kernels, AreExactToFloat32Rounding) {
  for (const auto& [rows, columns] : sizes) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
    const at::Tensor x = random(rows, columns) * 4, g = random(rows, columns),
                     bias = random(1, columns), weight = random(1, columns);
    const at::Tensor x64 = x.to(at::kDouble), g64 = g.to(at::kDouble), b64 = bias.to(at::kDouble);
    at::Tensor y = at::empty_like(x), sums = at::empty({columns}, at::kFloat);
    bias_gelu(in(x), in(bias), out(y), rows, columns);
    expect_near(y, at::gelu(x64 + b64, "tanh"), 5e-7);
    bias_gelu_backward(in(g), in(x), in(bias), out(y), out(sums), rows, columns);
    const at::Tensor expected = at::gelu_backward(g64, x64 + b64, "tanh");
    expect_near(y, expected, 2e-6);
    expect_near(sums, expected.sum(0), 2e-5);
    if (columns == 1) continue;  // a norm over one element is nothing but noise
    at::Tensor statistics = at::empty({rows, 2}, at::kFloat);
    LayerNorm<float> norm{in(x), nullptr, nullptr, in(weight), in(bias)};
    norm.output = out(y), norm.statistics = out(statistics);
    norm.rows = rows, norm.columns = columns, norm.epsilon = 1e-5;
    layer_norm(norm);
    expect_near(y, at::layer_norm(x64, {columns}, weight.to(at::kDouble)[0], b64[0], 1e-5), 3e-6);
  }
}

// Around its chunks of 32768 elements.
TEST(Kernels, TheSumOfSquaresIsExactAndTheSameForAnyNumberOfThreads) {
  for (const auto type : {at::kFloat, at::kDouble})
    for (const int64_t count : {0, 1, 17, 32767, 32768, 100003}) {
      SCOPED_TRACE(count);
      const at::Tensor x = at::randn({count}, type);
      const double expected = x.to(at::kDouble).square().sum().item<double>();
      at::set_num_threads(1);
      const double alone = sum_of_squares(x);
      EXPECT_NEAR(alone, expected, 1e-12 * expected);
      for (const int threads : {2, 3}) {
        at::set_num_threads(threads);
        EXPECT_EQ(sum_of_squares(x), alone);
      }
      at::set_num_threads(1);
    }
}

TEST(Kernels, PropagateWhatIsNotANumberAndSaturate) {
  const float infinity = INFINITY, nan = NAN;
  const at::Tensor x = at::tensor({nan, infinity, 1e30f, -1e30f, 90.0f, -90.0f, 0.0f});
  const at::Tensor zero = at::zeros({7}), one = at::ones({7});
  at::Tensor y = at::empty({7}), d = at::empty({7}), sums = at::empty({7});
  bias_gelu(in(x), in(zero), out(y), 1, 7);
  bias_gelu_backward(in(one), in(x), in(zero), out(d), out(sums), 1, 7);
  EXPECT_TRUE(std::isnan(y[0].item<float>()) && std::isnan(d[0].item<float>()));
  EXPECT_EQ(y[1].item<float>(), infinity);
  EXPECT_EQ(y[4].item<float>(), 90);
  EXPECT_EQ(d[4].item<float>(), 1);
  EXPECT_EQ(y[5].item<float>(), 0);
  EXPECT_EQ(d[5].item<float>(), 0);
  EXPECT_EQ(y[6].item<float>(), 0);
  EXPECT_EQ(d[6].item<float>(), 0.5);
  at::Tensor statistics = at::empty({1, 2});
  LayerNorm<float> norm{in(x), nullptr, nullptr, in(one), in(zero)};
  norm.output = out(y), norm.statistics = out(statistics);
  norm.rows = 1, norm.columns = 7, norm.epsilon = 1e-5;
  layer_norm(norm);
  EXPECT_TRUE(y.isnan().all().item<bool>());
}

TEST(Kernels, ExponentialIsWithinTwoUnitsInTheLastPlace) {
  auto exponential_of = [](float x) {
    Vector<float> v = Vector<float>{} + x;
    exponential(v, v);
    return v[3];
  };
  for (float x = -86.97f; x < 88.7f; x += 0.00137f) {
    const double exact = std::exp(double(x));
    const double unit = double(std::nextafter(float(exact), INFINITY)) - double(float(exact));
    ASSERT_LT(std::abs(double(exponential_of(x)) - exact), 2 * unit) << x;
  }
  EXPECT_EQ(exponential_of(0), 1);
  EXPECT_EQ(exponential_of(-INFINITY), 0);
  EXPECT_EQ(exponential_of(-1000), 0);
  EXPECT_EQ(exponential_of(INFINITY), INFINITY);
  EXPECT_EQ(exponential_of(1000), INFINITY);
  EXPECT_TRUE(std::isnan(exponential_of(NAN)));
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    EXPECT_EQ(kernel_threads(), threads);
    for (const int64_t count : {0, 1, 5, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count) + 7);
      parallel_for(7, count + 7, 3, [&](int64_t first, int64_t last) {
        EXPECT_LT(first, last);
        for (int64_t i = first; i < last; ++i) ++seen[size_t(i)];
      });
      for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i >= 7 ? 1 : 0);
    }
  }
  at::set_num_threads(1);
}

}  // namespace
}  // namespace phalanx::kernels
