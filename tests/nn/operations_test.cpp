#include "phalanx/base/error.h"
#include "phalanx/nn/activation.h"
#include "phalanx/nn/attention.h"
#include "phalanx/nn/embedding.h"
#include "phalanx/nn/layer_norm.h"
#include "phalanx/nn/linear.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

at::Tensor random(std::vector<int64_t> shape) { return at::randn(shape, at::kDouble); }

TEST(Operations, LinearEqualsLibTorch) {
  for (const WeightLayout layout : {WeightLayout::in_out, WeightLayout::out_in})
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(text(static_cast<int>(layout), " ", biased));
      const bool in_out = layout == WeightLayout::in_out;
      OperationCase c;
      c.inputs = {random({3, 5, 7})};
      c.parameters = {random(in_out ? std::vector<int64_t>{7, 4} : std::vector<int64_t>{4, 7})};
      if (biased) c.parameters.push_back(random({4}));
      c.ours = [=](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
        return {linear(in[0], w[0], biased ? w[1] : nullptr, layout)};
      };
      c.expected = [=](const Tensors& in, const Tensors& w) -> Tensors {
        const at::Tensor y = at::matmul(in[0], in_out ? w[0] : w[0].t());
        return {biased ? y + w[1] : y};
      };
      check_operation(c);
    }
}

TEST(Operations, LinearReadsInputsThatAreNotContiguous) {
  OperationCase c;
  c.inputs = {random({7, 5})};
  c.parameters = {random({7, 4}), random({4})};
  c.ours = [](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
    return {linear(in[0].t(), w[0], w[1])};
  };
  c.expected = [](const Tensors& in, const Tensors& w) -> Tensors {
    return {at::matmul(in[0].t(), w[0]) + w[1]};
  };
  check_operation(c);
}

TEST(Operations, AddBiasAndGeluEqualLibTorch) {
  for (const int64_t columns : {1, 7, 8, 37, 64}) {
    SCOPED_TRACE(columns);
    OperationCase c;
    c.inputs = {random({2, 67, columns}), random({2, 67, columns})};
    c.parameters = {random({columns})};
    c.ours = [](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      return {add_bias(in[0], in[1], w[0])};
    };
    c.expected = [](const Tensors& in, const Tensors& w) -> Tensors {
      return {in[0] + in[1] + w[0]};
    };
    check_operation(c);
    c.inputs.pop_back();
    c.ours = [](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      return {bias_gelu(in[0], w[0])};
    };
    c.expected = [](const Tensors& in, const Tensors& w) -> Tensors {
      return {at::gelu(in[0] + w[0], "tanh")};
    };
    check_operation(c);
  }
}

TEST(Operations, LayerNormsEqualLibTorch) {
  const double epsilon = 1e-5;
  auto norm = [=](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    return at::layer_norm(x, {x.size(-1)}, w, b, epsilon);
  };
  for (const int64_t columns : {2, 8, 37}) {
    SCOPED_TRACE(columns);
    OperationCase c;
    c.inputs = {random({2, 35, columns}), random({2, 35, columns})};
    c.parameters = {random({columns}), random({columns}), random({columns})};
    c.ours = [=](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      const NormedStream out = add_layer_norm(in[0], in[1], w[0], w[1], w[2], epsilon);
      return {out.stream, out.normed};
    };
    c.expected = [=](const Tensors& in, const Tensors& w) -> Tensors {
      const at::Tensor stream = in[0] + in[1] + w[0];
      return {stream, norm(stream, w[1], w[2])};
    };
    check_operation(c);
    c.parameters.pop_back();
    c.ours = [=](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      const NormedStream out = add_layer_norm(in[0], in[1], nullptr, w[0], w[1], epsilon);
      return {out.normed, out.stream};
    };
    c.expected = [=](const Tensors& in, const Tensors& w) -> Tensors {
      return {norm(in[0] + in[1], w[0], w[1]), in[0] + in[1]};
    };
    check_operation(c);
    c.inputs.pop_back();
    c.ours = [=](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      const NormedStream out = fork_layer_norm(in[0], w[0], w[1], epsilon);
      return {out.stream * 2, out.normed};
    };
    c.expected = [=](const Tensors& in, const Tensors& w) -> Tensors {
      return {in[0] * 2, norm(in[0], w[0], w[1])};
    };
    check_operation(c);
    c.ours = [=](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
      return {layer_norm(in[0], w[0], w[1], epsilon)};
    };
    c.expected = [=](const Tensors& in, const Tensors& w) -> Tensors {
      return {norm(in[0], w[0], w[1])};
    };
    check_operation(c);
  }
}

TEST(Operations, NormWithoutItsOutputPassesTheStream) {
  OperationCase c;
  c.inputs = {random({2, 3, 4}), random({2, 3, 4})};
  c.parameters = {random({4})};
  const Parameter weight = parameter_of("w", random({4})), bias = parameter_of("b", random({4}));
  c.ours = [&](const Tensors& in, const std::vector<Parameter>& w) -> Tensors {
    return {add_layer_norm(in[0], in[1], w[0], weight, bias, 1e-5).stream};
  };
  c.expected = [](const Tensors& in, const Tensors& w) -> Tensors {
    return {in[0] + in[1] + w[0]};
  };
  check_operation(c);
  EXPECT_FALSE(weight->tensor.grad().defined());
}

TEST(Operations, AttentionEqualsTheFormula) {
  for (const auto& [batch, time, heads, size] :
       {std::array<int64_t, 4>{2, 9, 3, 4}, {1, 1, 2, 8}, {1, 70, 1, 5}}) {
    SCOPED_TRACE(text(batch, " ", time, " ", heads, " ", size));
    OperationCase c;
    c.inputs = {random({batch, time, 3 * heads * size})};
    c.ours = [heads = heads](const Tensors& in, const std::vector<Parameter>&) -> Tensors {
      return {causal_attention(in[0], heads, 0, "test", {})};
    };
    c.expected = [heads = heads, size = size](const Tensors& in, const Tensors&) -> Tensors {
      const int64_t batch = in[0].size(0), time = in[0].size(1);
      const auto parts =
          in[0].view({batch, time, 3, heads, size}).permute({2, 0, 3, 1, 4}).unbind();
      const at::Tensor scores =
          at::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(double(size));
      const at::Tensor future = at::ones({time, time}, at::kBool).triu(1);
      const at::Tensor p = at::softmax(scores.masked_fill(future, -INFINITY), -1);
      return {at::matmul(p, parts[2]).transpose(1, 2).reshape({batch, time, heads * size})};
    };
    check_operation(c);
  }
}

TEST(Operations, EmbeddingEqualsLibTorch) {
  const at::Tensor ids = at::randint(0, 11, {3, 5}, at::kLong);
  OperationCase c;
  c.parameters = {random({11, 6}), random({9, 6})};
  c.ours = [=](const Tensors&, const std::vector<Parameter>& w) -> Tensors {
    return {embedding(ids, w[0], w[1], 2)};
  };
  c.expected = [=](const Tensors&, const Tensors& w) -> Tensors {
    return {at::embedding(w[0], ids) + w[1].narrow(0, 2, 5)};
  };
  check_operation(c);
}

// The sentence of the Error that `body` throws.
template <class Body>
std::string error_of(ExitCode code, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(Operations, RefuseWhatTheyCannotDo) {
  const Parameter tokens = parameter_of("wte.weight", random({11, 6})),
                  positions = parameter_of("wpe.weight", random({4, 6}));
  const at::Tensor ids = at::full({1, 3}, 11, at::kLong);
  EXPECT_NE(error_of(ExitCode::data, [&] { embedding(ids, tokens, positions); })
                .find("token id 11 at place 0"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::data, [&] { embedding(ids - 12, tokens, positions); }).find("-1"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::usage, [&] { embedding(ids * 0, tokens, positions, 2); })
                .find("max_position_embeddings = 4"),
            std::string::npos);
  EXPECT_NE(error_of(ExitCode::usage, [&] { linear(random({2, 5}), tokens); })
                .find("the input is 5 wide, the weight wants 11"),
            std::string::npos);
  const Parameter bias = parameter_of("b", at::ones({4}, at::kHalf));
  EXPECT_NE(error_of(ExitCode::usage, [&] { bias_gelu(at::ones({2, 4}, at::kHalf), bias); })
                .find("float32 or float64"),
            std::string::npos);
}

}  // namespace
}  // namespace phalanx
