#include "phalanx/models/generate.h"

#include <set>

#include "phalanx/base/error.h"
#include "phalanx/nn/init.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

std::unique_ptr<Model> small_model() {
  ModelSpec spec;
  spec.hidden_size = 16;
  spec.num_hidden_layers = 2;
  spec.num_attention_heads = spec.num_key_value_heads = 2;
  spec.intermediate_size = 32;
  spec.vocab_size = 29;
  spec.max_position_embeddings = 12;
  spec.initializer_range = 0.5;
  spec.resid_pdrop = 0.5;  // must not act when generating
  auto model = make_model(spec, at::kDouble);
  allocate_and_initialize(parameters_of(*model), 4);
  return model;
}

// Logits after `tokens`, computed from all of them at once.
at::Tensor whole_logits(Model& model, const std::vector<int64_t>& tokens) {
  const GradMode no_grad(false);
  Context context;
  context.training = false;
  Tensors hidden = model.embed(at::tensor(tokens, at::kLong).unsqueeze(0), context);
  for (int i = 0; i < model.block_count(); ++i) hidden = model.block(i).forward(hidden, context);
  return model.logits(hidden, context)[0][int64_t(tokens.size()) - 1];
}

TEST(Generate, DecodingWithACacheEqualsTheWholePrefix) {
  auto model = small_model();
  DecodeCache cache;
  std::vector<int64_t> tokens = {3, 1, 4};
  at::Tensor logits = model->decode(at::tensor(tokens, at::kLong).unsqueeze(0), cache)[0];
  for (int64_t next : {1, 5, 9, 2, 6}) {
    expect_close(logits, whole_logits(*model, tokens), 1e-12);
    tokens.push_back(next);
    logits = model->decode(at::full({1, 1}, next, at::kLong), cache)[0];
  }
  EXPECT_EQ(cache.length, int64_t(tokens.size()));
}

TEST(Generate, GreedyTakesTheLikeliestAndForgetsTheOldestHalf) {
  auto model = small_model();
  const std::vector<int64_t> prompt = {7, 8};
  const auto generated = generate(*model, prompt, {.new_tokens = 30, .temperature = 0});
  ASSERT_EQ(generated.size(), 30u);
  std::vector<int64_t> all = prompt, window = prompt;
  for (int64_t token : generated) {
    if (window.size() > 12) window = {all.end() - 6, all.end()};
    EXPECT_EQ(token, whole_logits(*model, window).argmax().item<int64_t>());
    all.push_back(token), window.push_back(token);
  }
}

TEST(Generate, SamplesByProbabilityWithinTopK) {
  auto model = small_model();
  const std::vector<int64_t> prompt = {7};
  const at::Tensor logits = whole_logits(*model, prompt);
  const auto best = std::get<1>(logits.topk(3));
  const at::Tensor p = at::softmax(logits.index_select(0, best) / 1.5, 0);
  std::vector<double> share(29);
  const int draws = 1000;
  for (uint64_t seed = 0; seed < draws; ++seed) {
    const Sampling sampling{.new_tokens = 1, .temperature = 1.5, .top_k = 3, .seed = seed};
    share[size_t(generate(*model, prompt, sampling)[0])] += 1.0 / draws;
  }
  double inside = 0;
  for (int64_t i = 0; i < 3; ++i) {
    const double seen = share[size_t(best[i].item<int64_t>())];
    EXPECT_NEAR(seen, p[i].item<double>(), 0.06);
    inside += seen;
  }
  EXPECT_NEAR(inside, 1, 1e-9);
  std::vector<int64_t> told;
  const Sampling sampling{.new_tokens = 20, .seed = 3};
  const auto once = generate(*model, prompt, sampling, [&](int64_t t) { told.push_back(t); });
  EXPECT_EQ(told, once);
  EXPECT_EQ(generate(*model, prompt, sampling), once);
}

TEST(Generate, SamplesByProbabilityOfAllTokens) {
  auto model = small_model();
  const std::vector<int64_t> prompt = {7};
  const at::Tensor p = at::softmax(whole_logits(*model, prompt) / 1.5, 0);
  std::vector<double> share(29);
  const int draws = 1000;
  for (uint64_t seed = 0; seed < draws; ++seed) {
    const Sampling sampling{.new_tokens = 1, .temperature = 1.5, .seed = seed};
    share[size_t(generate(*model, prompt, sampling)[0])] += 1.0 / draws;
  }
  for (int64_t i = 0; i < 29; ++i)
    EXPECT_NEAR(share[size_t(i)], p[i].item<double>(), 0.06) << "token " << i;
}

TEST(Generate, RefusesWhatCannotBe) {
  auto model = small_model();
  EXPECT_THROW(generate(*model, {}, {}), Error);
  EXPECT_THROW(generate(*model, {29}, {}), Error);
  EXPECT_THROW(generate(*model, {1}, {.temperature = -1}), Error);
  EXPECT_THROW(generate(*model, {1}, {.top_k = -1}), Error);
}

}  // namespace
}  // namespace phalanx
