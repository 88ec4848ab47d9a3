#include <ATen/Parallel.h>

#include <cmath>
#include <utility>

#include "phalanx/checkpoint/weights.h"
#include "phalanx/cli/command.h"
#include "phalanx/cli/join.h"
#include "phalanx/data/tokenizer.h"
#include "phalanx/device/dtype.h"
#include "phalanx/models/generate.h"
#include "phalanx/nn/init.h"
#include "phalanx/train/saved_config.h"

namespace phalanx::cli {
namespace {

/// A trained model on one rank, in plain memory, with what it was trained with.
struct Trained {
  Config config;
  std::unique_ptr<Model> model;
};

// Text becomes ids by the byte tokenizer only: the ids of another would mean nothing to the model.
// Where no config of a run names it, the model's vocabulary must be that of bytes.
std::string tokenizer_of(const Source& source, const Config& config) {
  if (!config.data.tokenizer.empty()) return config.data.tokenizer;
  for (const auto& item : source.storage->list(source.folder))
    for (const char* file : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model"})
      require(item.name != file, ExitCode::usage, source.path, ": it has a tokenizer of its own (",
              file, "), which this version cannot read; only models on bytes can generate here");
  require(config.model.spec.vocab_size == byte_tokenizer()->vocab_size(), ExitCode::usage,
          source.path, ": nothing says what its tokenizer is, and a vocabulary of ",
          config.model.spec.vocab_size,
          " is not that of bytes (256); for a model on bytes, `phalanx ckpt import` with --config "
          "says so");
  return byte_tokenizer()->name();
}

Trained load_trained(const std::string& path) {
  const auto alone = single_communicator("world");
  Trained trained;
  const Source source = open_source(path);
  trained.config = saved_config(source);
  trained.config.data.tokenizer = tokenizer_of(source, trained.config);
  const Dtype compute = trained.config.parallel.compute;
  trained.model = make_model(trained.config.model.spec, scalar_type(compute));
  const auto parameters = parameters_of(*trained.model);
  allocate_and_initialize(parameters, 0);
  std::vector<StateEntry> entries;
  for (const Parameter& parameter : parameters)
    for (StateEntry& entry :
         whole_entries(parameter->spec, parameter->tensor.detach(), "parameter"))
      entries.push_back(std::move(entry));
  load_weights(*alone, source.path, trained.config.model.spec, entries);
  return trained;
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int phalanx_command_generate(int argc, char** argv) {
  using namespace phalanx;
  cli::CommandLine app("Continues a prompt with a trained model; the text goes to stdout.",
                       "phalanx generate");
  std::string model, checkpoint, prompt;
  Sampling sampling;
  sampling.temperature = 0.8;
  app.add_option("--checkpoint", checkpoint, "folder of a checkpoint, or of a run (its newest)");
  app.add_option("--model", model, "folder of a Hugging Face model");
  app.add_option("--prompt", prompt, "the text to continue")->required();
  app.add_option("--tokens", sampling.new_tokens, "new tokens")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "only the K likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "same seed, same text")->capture_default_str();
  if (!app.read(argc, argv)) return 0;
  require(std::isfinite(sampling.temperature), ExitCode::usage, "--temperature ",
          sampling.temperature, " is no temperature; give a number from 0 to 100");
  require(model.empty() != checkpoint.empty(), ExitCode::usage,
          model.empty() ? "no model to generate with" : "two models to generate with",
          "; give --checkpoint DIR, for example a run's folder, or --model DIR");
  const std::string& path = model.empty() ? checkpoint : model;

  at::set_num_threads(cli::rank_threads({}, {}));
  const cli::Trained trained = cli::load_trained(path);
  const auto tokenizer = make_tokenizer(trained.config.data.tokenizer);
  require(tokenizer->vocab_size() <= trained.config.model.spec.vocab_size, ExitCode::checkpoint,
          path, ": its model has a vocabulary of ", trained.config.model.spec.vocab_size,
          ", and its tokenizer \"", tokenizer->name(), "\" one of ", tokenizer->vocab_size());
  bool begun = false;  // the prompt is not shown before an error
  generate(*trained.model, tokenizer->encode(prompt), sampling, [&](int64_t id) {
    if (!std::exchange(begun, true)) std::cout << prompt << std::flush;
    if (id < tokenizer->vocab_size())
      std::cout << tokenizer->decode(std::vector<int64_t>{id}) << std::flush;
  });
  std::cout << std::endl;
  return 0;
}
