#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/spec/huggingface.h"
#include "tests/nn/support.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

ModelSpec small_spec() {
  ModelSpec spec;
  spec.hidden_size = 24;
  spec.num_hidden_layers = 3;
  spec.num_attention_heads = spec.num_key_value_heads = 4;
  spec.intermediate_size = 56;
  spec.vocab_size = 37;
  spec.max_position_embeddings = 16;
  spec.initializer_range = 0.3;  // large, so that every part of the model matters
  return spec;
}

struct Batch {
  at::Tensor tokens, targets;
};
Batch random_batch(const ModelSpec& spec, int64_t rows, int64_t time) {
  Batch batch{at::randint(0, spec.vocab_size, {rows, time}, at::kLong),
              at::randint(0, spec.vocab_size, {rows, time}, at::kLong)};
  batch.targets[rows - 1][time - 1] = ignored_target;
  return batch;
}

std::map<std::string, at::Tensor> gradients_of(Model& model) {
  std::map<std::string, at::Tensor> gradients;
  for (const Parameter& p : parameters_of(model)) {
    EXPECT_TRUE(p->tensor.grad().defined()) << p->spec.name;
    if (p->tensor.grad().defined()) gradients[p->spec.name] = p->tensor.grad().clone();
    p->tensor.mutable_grad().reset();
  }
  return gradients;
}

void backward_of(const Loss& loss) { run_backward({loss.scaled}, {at::ones({}, at::kDouble)}); }

std::unique_ptr<Model> initialized(const ModelSpec& spec, at::ScalarType type = at::kDouble) {
  auto model = make_model(spec, type);
  allocate_and_initialize(parameters_of(*model), 3);
  return model;
}

// A folder for the exchange with Python, removed at the end.
struct Exchange {
  fs::path path;
  explicit Exchange(int number)
      : path(fs::temp_directory_path() / text("phalanx-gpt2-", getpid(), "-", number)) {
    fs::create_directories(path);
  }
  ~Exchange() { fs::remove_all(path); }
  void write(const std::string& name, const at::Tensor& tensor) const {
    const at::Tensor dense = tensor.detach().contiguous();
    std::ofstream(path / (name + ".bin"), std::ios::binary)
        .write(static_cast<const char*>(dense.const_data_ptr()), std::streamsize(dense.nbytes()));
  }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const {
    at::Tensor tensor = at::empty(shape, at::kDouble);
    std::ifstream file(path / (name + ".bin"), std::ios::binary);
    file.read(static_cast<char*>(tensor.mutable_data_ptr()), std::streamsize(tensor.nbytes()));
    EXPECT_TRUE(file && file.peek() == EOF) << name << ": missing, or of another size";
    return tensor;
  }
};

struct OracleCase {
  ModelSpec spec = small_spec();
  std::unique_ptr<Model> model;
  Batch batch;
  Exchange exchange;
  OracleCase(bool tied, int64_t rows, int64_t time) : exchange(tied) {
    spec.tie_word_embeddings = tied;
    model = initialized(spec);
    batch = random_batch(spec, rows, time);
    std::ofstream(exchange.path / "config.json") << huggingface_config(spec);
    for (const Parameter& p : parameters_of(*model))
      exchange.write(p->spec.pieces[0].name, p->tensor);
    exchange.write("tokens", batch.tokens);
    exchange.write("targets", batch.targets);
  }
  void compare() {
    const Loss loss = forward_loss(*model, batch.tokens, batch.targets, 1, {});
    backward_of(loss);
    const double expected = exchange.read("loss", {1}).item<double>();
    EXPECT_NEAR(loss.sum, expected, 1e-11 * expected);
    for (const auto& p : parameters_of(*model)) {
      const std::string& name = p->spec.pieces[0].name;
      SCOPED_TRACE(name);
      expect_close(p->tensor.grad(), exchange.read(name + ".gradient", p->spec.local_shape), 1e-10);
    }
    Tensors hidden = model->embed(batch.tokens, {});
    for (int i = 0; i < model->block_count(); ++i) hidden = model->block(i).forward(hidden, {});
    const at::Tensor logits = model->logits(hidden, {}).detach();
    expect_close(logits, exchange.read("logits", logits.sizes()), 1e-11);
  }
};

TEST(Gpt2, EqualsTransformersInLossLogitsAndEveryGradient) {
  const std::string venv = PHALANX_SOURCE_DIR "/.venv";
  ASSERT_EQ(
      std::system(("ls -d " + venv + "/lib/*/site-packages/transformers >/dev/null 2>&1").c_str()),
      0)
      << "no transformers in .venv: `tools/install.sh test` installs it";
  OracleCase untied(false, 3, 13), tied(true, 3, 13);
  const std::string command =
      text(venv, "/bin/python " PHALANX_SOURCE_DIR "/tests/models/gpt2_oracle.py 13 ",
           untied.exchange.path.string(), " ", tied.exchange.path.string());
  ASSERT_EQ(std::system(command.c_str()), 0);
  untied.compare();
  tied.compare();
}

TEST(Gpt2, IsTheSameWholeDeferredRecomputedAndInMicrobatches) {
  ModelSpec spec = small_spec();
  for (const double drop : {0.0, 0.2}) {
    SCOPED_TRACE(drop);
    spec.attn_pdrop = spec.resid_pdrop = spec.embd_pdrop = drop;
    auto model = initialized(spec);
    const Batch batch = random_batch(spec, 4, 11);
    const double scale = 1.0 / 43;
    Context context;
    context.seed = 1;
    const Loss whole = forward_loss(*model, batch.tokens, batch.targets, scale, context);
    backward_of(whole);
    const auto expected = gradients_of(*model);

    auto compare = [&] {
      const auto gradients = gradients_of(*model);
      ASSERT_EQ(gradients.size(), expected.size());
      for (const auto& [name, gradient] : expected) {
        SCOPED_TRACE(name);
        expect_close(gradients.at(name), gradient, 1e-11);
      }
    };
    {
      SCOPED_TRACE("deferred");
      DeferredGradients queue;
      {
        DeferredGradients::Scope scope(queue);
        backward_of(forward_loss(*model, batch.tokens, batch.targets, scale, context));
      }
      queue.run();
      compare();
    }
    {
      SCOPED_TRACE("recomputed");
      Tensors hidden = model->embed(batch.tokens, context);
      for (int i = 0; i < model->block_count(); ++i)
        hidden = recompute(
            hidden, [&, i](const Tensors& in) { return model->block(i).forward(in, context); });
      backward_of(model->loss(hidden, batch.targets, scale, context));
      compare();
    }
    {
      SCOPED_TRACE("microbatches");
      double sum = 0;
      for (const auto& [first, rows] : {std::pair{0, 1}, {1, 3}}) {
        Context part = context;
        part.sequence.first_sample = first;
        const Loss loss =
            forward_loss(*model, batch.tokens.narrow(0, first, rows).contiguous(),
                         batch.targets.narrow(0, first, rows).contiguous(), scale, part);
        sum += loss.sum;
        backward_of(loss);
      }
      EXPECT_NEAR(sum, whole.sum, 1e-11 * whole.sum);
      compare();
    }
  }
}

TEST(Gpt2, InFloat32FollowsFloat64) {
  const ModelSpec spec = small_spec();
  const Batch batch = random_batch(spec, 2, 16);
  auto exact = initialized(spec), single = initialized(spec, at::kFloat);
  const Loss a = forward_loss(*exact, batch.tokens, batch.targets, 1, {}),
             b = forward_loss(*single, batch.tokens, batch.targets, 1, {});
  EXPECT_NEAR(a.sum, b.sum, 1e-5 * a.sum);
  backward_of(a), backward_of(b);
  const auto expected = gradients_of(*exact), gradients = gradients_of(*single);
  double norm = 0;
  for (const auto& [name, gradient] : expected) norm += gradient.pow(2).sum().item<double>();
  for (const auto& [name, gradient] : expected)
    EXPECT_LT((gradients.at(name).to(at::kDouble) - gradient).norm().item<double>(),
              1e-5 * std::max(gradient.norm().item<double>(), 1e-1 * std::sqrt(norm)))
        << name;
}

}  // namespace
}  // namespace phalanx
