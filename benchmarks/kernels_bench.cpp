// What each fused kernel saves: CPU time on one thread beside the LibTorch operations that it
// replaces, with their outputs allocated alike. kernels_bench [ROWS [COLUMNS]], then one line per
// kernel: milliseconds of ours, of LibTorch's, and the ratio (median of interleaved pairs).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "phalanx/kernels/bias_gelu.h"
#include "phalanx/kernels/cross_entropy.h"
#include "phalanx/kernels/embedding.h"
#include "phalanx/kernels/layer_norm.h"
#include "phalanx/kernels/residual.h"
#include "phalanx/kernels/sum_of_squares.h"

namespace phalanx::kernels {
namespace {

double cpu_milliseconds(const std::function<void()>& work) {
  auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e3 * double(t.tv_sec) + 1e-6 * double(t.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const char* name, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  std::vector<double> a, b, ratio;
  ours(), theirs();
  for (int pair = 0; pair < 9; ++pair) {
    a.push_back(cpu_milliseconds(ours));
    b.push_back(cpu_milliseconds(theirs));
    ratio.push_back(b.back() / a.back());
  }
  std::printf("%-28s %8.2f %8.2f   %.2fx\n", name, median(a), median(b), median(ratio));
}

const float* in(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }
float* out(const at::Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

void run(int64_t rows, int64_t columns) {
  const at::Tensor x = at::randn({rows, columns}), y = at::randn({rows, columns}),
                   g = at::randn({rows, columns}), bias = at::randn({columns}),
                   weight = at::randn({columns});
  auto like = [&] { return at::empty_like(x); };
  std::printf("%ld x %ld float32               ours LibTorch   ratio\n", rows, columns);
  compare(
      "bias + gelu", [&] { bias_gelu(in(x), in(bias), out(like()), rows, columns); },
      [&] { at::gelu(x + bias, "tanh"); });
  compare(
      "bias + gelu, backward",
      [&] {
        bias_gelu_backward(in(g), in(x), in(bias), out(like()), out(at::empty({columns})), rows,
                           columns);
      },
      [&] { at::gelu_backward(g, x, "tanh").sum(0); });
  const at::Tensor statistics = at::empty({rows, 2});
  compare(
      "residual + bias + norm",
      [&] {
        const at::Tensor stream = like(), normed = like();
        LayerNorm<float> call{in(x), in(y), in(bias), in(weight), in(bias)};
        call.stream = out(stream), call.output = out(normed), call.statistics = out(statistics);
        call.rows = rows, call.columns = columns, call.epsilon = 1e-5;
        layer_norm(call);
      },
      [&] { at::native_layer_norm(x + (y + bias), {columns}, weight, bias, 1e-5); });
  const auto norm = at::native_layer_norm(x, {columns}, weight, bias, 1e-5);
  compare(
      "residual + norm, backward",
      [&] {
        const at::Tensor gradient = like(), sums = at::empty({3, columns});
        LayerNormBackward<float> call{in(g), in(y), in(x), in(statistics), in(weight)};
        call.input_gradient = out(gradient), call.weight_gradient = out(sums);
        call.bias_gradient = out(sums) + columns;
        call.branch_bias_gradient = out(sums) + 2 * columns;
        call.rows = rows, call.columns = columns;
        layer_norm_backward(call);
      },
      [&] {
        const at::Tensor gradient = std::get<0>(at::native_layer_norm_backward(
                                        g, x, {columns}, std::get<1>(norm), std::get<2>(norm),
                                        weight, bias, {true, true, true})) +
                                    y;
        gradient.sum(0);
      });
  compare(
      "residual + bias", [&] { add_bias(in(x), in(y), in(bias), out(like()), rows, columns); },
      [&] { x + (y + bias); });
  compare(
      "column sums", [&] { column_sums(in(x), out(at::empty({columns})), rows, columns); },
      [&] { x.sum(0); });
  const at::Tensor targets = at::randint(0, columns, {rows}, at::kLong);
  const at::Tensor losses = at::empty({rows}, at::kDouble), logits = x.clone();
  compare(
      "cross entropy and gradient",
      [&] {
        cross_entropy(out(logits), targets.const_data_ptr<int64_t>(), -1, 1.0, true,
                      losses.mutable_data_ptr<double>(), rows, columns);
      },
      [&] {
        const at::Tensor p = at::log_softmax(x, 1);
        at::nll_loss(p, targets, {}, at::Reduction::Sum);
        const at::Tensor d = at::nll_loss_backward(at::ones({}), p, targets, {}, at::Reduction::Sum,
                                                   -100, at::ones({}));
        at::_log_softmax_backward_data(d, p, 1, at::kFloat);
      });
  const at::Tensor ids = targets.clamp_max(rows - 1);
  compare(
      "embedding gradient",
      [&] {
        const at::Tensor table = at::zeros_like(x);
        scatter_rows(in(g), ids.const_data_ptr<int64_t>(), out(table), rows, columns);
      },
      [&] { at::embedding_dense_backward(g, ids, rows, -1, false); });
  compare("sum of squares", [&] { sum_of_squares(x); }, [&] { x.pow(2).sum(at::kDouble); });
}

}  // namespace
}  // namespace phalanx::kernels

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc > 1)
    phalanx::kernels::run(std::atoll(argv[1]), argc > 2 ? std::atoll(argv[2]) : 1024);
  else
    for (const auto& [rows, columns] : {std::pair{2048, 384}, {2048, 1536}, {2048, 8192}})
      phalanx::kernels::run(rows, columns);
}
