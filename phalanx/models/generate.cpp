#include "phalanx/models/generate.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "phalanx/base/error.h"
#include "phalanx/base/random.h"

namespace phalanx {
namespace {

void check(const Model& model, const std::vector<int64_t>& prompt, const Sampling& sampling) {
  require(!prompt.empty(), ExitCode::usage, "the prompt is empty; give at least one token");
  require(std::isfinite(sampling.temperature) && sampling.temperature >= 0, ExitCode::usage,
          "temperature ", sampling.temperature, " is not possible; give 0 or more");
  require(sampling.top_k >= 0, ExitCode::usage, "top_k ", sampling.top_k,
          " is not possible; give a count, or 0 for all tokens");
  require(sampling.new_tokens >= 0, ExitCode::usage, sampling.new_tokens,
          " new tokens are not possible; give 0 or more");
  require(model.spec().max_position_embeddings >= 2, ExitCode::usage,
          "a context of one token cannot generate");
}

// Draws from softmax(logits / temperature) over the likeliest `top_k` by the inverse of its
// cumulative distribution. Equal logits rank by their id.
int64_t draw(const std::vector<double>& logits, const Sampling& sampling, double random) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature == 0) return likeliest - logits.begin();
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  size_t count = ids.size();
  if (sampling.top_k > 0 && size_t(sampling.top_k) < count) {
    count = size_t(sampling.top_k);
    const auto likelier = [&](int64_t a, int64_t b) {
      const double x = logits[size_t(a)], y = logits[size_t(b)];
      return x != y ? x > y : a < b;
    };
    std::partial_sort(ids.begin(), ids.begin() + int64_t(count), ids.end(), likelier);
  }
  std::vector<double> weights(count);
  for (size_t i = 0; i < count; ++i)
    weights[i] = std::exp((logits[size_t(ids[i])] - *likeliest) / sampling.temperature);
  double left = random * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < count; ++i)
    if ((left -= weights[i]) < 0) return ids[i];
  return likeliest - logits.begin();  // a rounding below the sum
}

std::vector<double> last_logits(Model& model, const std::vector<int64_t>& tokens,
                                DecodeCache& cache) {
  const at::Tensor ids = at::tensor(tokens, at::TensorOptions().dtype(at::kLong)).unsqueeze(0);
  const at::Tensor logits = model.decode(ids, cache).to(at::kDouble).contiguous();
  const double* values = logits.const_data_ptr<double>();
  for (int64_t i = 0; i < logits.numel(); ++i)
    require(!std::isnan(values[i]), ExitCode::check_failed,
            "the model gives NaN for the next token; its parameters are not usable");
  return {values, values + logits.numel()};
}

std::vector<int64_t> newest(const std::vector<int64_t>& tokens, int64_t count) {
  return {tokens.end() - std::min<int64_t>(count, int64_t(tokens.size())), tokens.end()};
}

}  // namespace

std::vector<int64_t> generate(Model& model, const std::vector<int64_t>& prompt,
                              const Sampling& sampling,
                              const std::function<void(int64_t)>& on_token) {
  check(model, prompt, sampling);
  const GradMode no_grad(false);
  const RandomKey key = random_key(sampling.seed, "generate");
  const int64_t context = model.spec().max_position_embeddings;
  std::vector<int64_t> tokens = prompt, fresh = newest(tokens, context);
  DecodeCache cache;
  for (int64_t i = 0; i < sampling.new_tokens; ++i) {
    if (cache.length + int64_t(fresh.size()) > context) {
      cache = {};
      fresh = newest(tokens, context / 2);
    }
    const std::vector<double> logits = last_logits(model, fresh, cache);
    fresh = {draw(logits, sampling, uniform(key, tokens.size()))};
    tokens.push_back(fresh[0]);
    if (on_token) on_token(fresh[0]);
  }
  return {tokens.begin() + int64_t(prompt.size()), tokens.end()};
}

}  // namespace phalanx
