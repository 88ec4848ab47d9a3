// What a run starts from: its own checkpoint, other weights, a model's folder, initial values.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/config/load.h"
#include "phalanx/device/dtype.h"
#include "phalanx/spec/huggingface.h"
#include "phalanx/train/run.h"
#include "phalanx/train/saved_config.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

// The parameters of a source, as float64, side by side.
at::Tensor parameters_in(const std::string& path) {
  const Source source = open_source(path);
  std::vector<at::Tensor> all;
  for (const auto& entry : source.manifest.entries) {
    if (entry.role != "parameter") continue;
    const at::Tensor values = at::empty(entry.shape, at::kDouble);
    read_box(source, entry, whole_box(entry.shape), values);
    all.push_back(values.view(-1));
  }
  return at::cat(all);
}

struct Outcome {
  std::string log, error;
};

// Runs a training on `ranks` ranks; rank 0's progress, or what all of them threw.
Outcome train(const Config& config, int ranks) {
  const std::string log = temporary_folder() + "/log";
  run_ranks(ranks, [&](World& world) {
    const int descriptor = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0644);
    try {
      Trainer trainer(config, borrowed(world));
      run_training(trainer, {.descriptor = world.info().rank == 0 ? descriptor : 2});
    } catch (const Error& error) {
      std::ofstream(log + ".error") << error.what();
      EXPECT_EQ(error.code(), ExitCode::checkpoint) << error.what();
    }
    close(descriptor);
  });
  const auto read = [](const std::string& path) {
    return fs::exists(path) ? read_file(path, ExitCode::checkpoint) : "";
  };
  return {read(log), read(log + ".error")};
}

void run(std::vector<std::string> arguments) {
  const auto finished = run_phalanx(std::move(arguments));
  EXPECT_EQ(finished.code, 0) << finished.error;
}

TEST(InitialWeights, ANewRunStartsFromAnythingThatCanBeReadOnAnyLayout) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.warmup_steps = 0;
  config.train.run_dir = folder + "/first";
  train(config, 2);
  const std::string first = folder + "/first";
  const at::Tensor trained = parameters_in(first);
  run({"ckpt", "export", first, folder + "/float64"});
  run({"ckpt", "export", first, folder + "/bfloat16", "--dtype", "bfloat16"});
  EXPECT_EQ(read_huggingface_config(folder + "/float64"), config.model.spec);

  // A rate of nearly 0: what is saved after one step is what the run started from.
  config.train.steps = 1;
  config.checkpoint.every = 1;
  config.lr.peak = 1e-300;
  config.optimizer.weight_decay = 0;
  int number = 0;
  const auto start = [&](const std::string& from, bool as_model, int ranks, Strategy strategy) {
    Config other = config;
    other.train.run_dir = text(folder, "/run", ++number);
    other.parallel.strategy = strategy;
    if (as_model) {
      other.model = {.path = from, .spec = read_huggingface_config(from)};
    } else {
      other.train.init_from = from;
    }
    const Outcome outcome = train(other, ranks);
    EXPECT_EQ(outcome.error, "");
    expect_contains(outcome.log, {"starting in " + other.train.run_dir + " from the weights of "});
    EXPECT_EQ(open_source(other.train.run_dir).manifest.run.step, 1);
    return parameters_in(other.train.run_dir);
  };
  const at::Tensor rounded = trained.to(at::kBFloat16).to(at::kDouble);
  for (const Strategy strategy : {Strategy::none, Strategy::optim_grads_params})
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(text(name(strategy), " ", ranks));
      EXPECT_TRUE(at::equal(start(first, false, ranks, strategy), trained));
      EXPECT_TRUE(at::equal(start(folder + "/bfloat16", true, ranks, strategy), rounded));
    }
  // The type is that of the run now, and the config says so.
  run({"ckpt", "export", folder + "/run2", folder + "/trained16"});
  const auto json =
      nlohmann::json::parse(read_file(folder + "/trained16/config.json", ExitCode::checkpoint));
  EXPECT_EQ(json["torch_dtype"], "float64");
  for (const auto& entry : open_source(folder + "/trained16").manifest.entries)
    EXPECT_EQ(entry.dtype, Dtype::float64);
  EXPECT_TRUE(at::equal(start(first + "/checkpoints/step-6", false, 1, {}), trained));
  EXPECT_TRUE(at::equal(start(folder + "/float64/model.safetensors", false, 1, {}), trained));

  // The same command again goes on from its own checkpoint, even if the weights have gone; and the
  // checkpoint says what the model is, even if its folder has.
  Config again = config;
  again.train.run_dir = folder + "/again";
  again.model = {.path = folder + "/float64", .spec = config.model.spec};
  train(again, 2);
  again.train.steps = 2;
  again.train.init_from = folder + "/nothing";
  expect_contains(train(again, 1).log, {"resumed from " + folder + "/again/checkpoints/step-1"});
  again.train.run_dir = folder + "/never";
  expect_contains(train(again, 2).error, {folder + "/nothing holds no tensors"});
  const std::string config_json = read_file(folder + "/float64/config.json", ExitCode::checkpoint);
  fs::remove_all(folder + "/float64");
  EXPECT_EQ(saved_config(open_source(folder + "/again")).model.spec, config.model.spec);
  run({"ckpt", "export", folder + "/again", folder + "/back"});
  EXPECT_EQ(read_file(folder + "/back/config.json", ExitCode::checkpoint), config_json);
}

TEST(InitialWeights, AFolderWithoutWeightsMeansInitialValuesAndOthersAreNotIgnored) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.warmup_steps = 0;
  config.train.steps = 1;
  config.model.path = folder + "/model";
  fs::create_directories(config.model.path);
  std::ofstream(config.model.path + "/config.json") << huggingface_config(config.model.spec);
  config.train.run_dir = folder + "/bare";
  expect_contains(train(config, 2).log,
                  {"initial values of seed 0", "/model holds a config.json and no weights"});
  std::ofstream(config.model.path + "/tf_model.h5") << "weights";
  config.train.run_dir = folder + "/foreign";
  expect_contains(train(config, 2).error, {"tf_model.h5", "cannot be read here"});
  std::ofstream(config.model.path + "/model.safetensors") << "version https://git-lfs";
  expect_contains(train(config, 2).error, {"model.safetensors is a Git LFS pointer"});
  // Weights of another model.
  Config other = small_config();
  other.lr.warmup_steps = 0;
  other.train.steps = 1;
  other.model.spec.num_hidden_layers = 2;
  other.train.run_dir = folder + "/two";
  train(other, 1);
  other.model.spec.num_hidden_layers = 3;
  other.model.spec.intermediate_size = 24;
  other.train.init_from = folder + "/two";
  other.train.run_dir = folder + "/three";
  expect_contains(train(other, 2).error,
                  {"two/checkpoints/step-1", "transformer.h.2.ln_1.bias",
                   "transformer.h.1.mlp.c_fc.bias (parameter) is [20], wanted [24]"});
}

TEST(InitialWeights, ResumingFromWeightsAloneSaysWhatIsMissingAndWhatToDo) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.warmup_steps = 0;
  config.train.steps = 1;
  config.train.run_dir = folder + "/run";
  train(config, 1);
  run({"ckpt", "export", folder + "/run", folder + "/out"});
  run({"ckpt", "import", folder + "/out", folder + "/imported/checkpoints"});
  config.train.steps = 2;
  for (const std::string from : {"/out", "/imported"}) {
    config.train.run_dir = folder + "/other";
    config.train.resume = folder + from;
    expect_contains(train(config, 2).error,
                    {folder + from, "cannot be resumed", "parameter (40 tensors)",
                     "lacks exp_avg, exp_avg_sq, the position in the data",
                     "train.init_from = \"" + folder + from + "\"",
                     "another train.run_dir or with train.resume = \"never\""});
  }
  config.train.resume = "auto";
  config.train.run_dir = folder + "/imported";
  expect_contains(train(config, 1).error, {"/imported/checkpoints/step-0 cannot be resumed"});
  config.train.init_from = folder + "/imported";
  config.train.resume = "never";
  EXPECT_EQ(train(config, 2).error, "");
}

// A flipped byte in the middle of a checkpoint's tensors, which no size or header shows.
TEST(InitialWeights, WithVerifyHashesDamageIsFoundWhereverACheckpointIsLoaded) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.warmup_steps = 0;
  config.train.steps = 1;
  config.train.run_dir = folder + "/run";
  train(config, 1);
  const std::string saved = folder + "/run/checkpoints/step-1";
  for (const auto& entry : fs::directory_iterator(saved)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(fs::file_size(entry.path()) / 2);
    const char flipped = static_cast<char>(file.seekg(middle).get() ^ 1);
    file.seekp(middle).put(flipped);
  }
  config.train.steps = 2;
  const std::map<std::string, std::function<void(const Config&, World&)>> uses = {
      {"eval", [](auto& c, World& world) { evaluate_checkpoint(c, borrowed(world)); }},
      {"init_from",
       [&](Config c, World& world) {
         c.train.init_from = saved;
         Trainer(c, borrowed(world)).initialize();
       }},
      {"load", [&](auto& c, World& world) { Trainer(c, borrowed(world)).load(saved); }},
      {"resume",
       [&](Config c, World& world) {
         c.train.run_dir = folder + "/other";
         c.train.resume = saved;
         Trainer trainer(c, borrowed(world));
         run_training(trainer, {});
       }},
      {"auto", [](auto& c, World& world) {
         Trainer trainer(c, borrowed(world));
         run_training(trainer, {});
       }}};
  for (const bool verify : {false, true})
    for (const auto& [label, use] : uses)
      run_ranks(2, [&, &label = label, &use = use](World& world) {
        SCOPED_TRACE(text(label, verify ? " verifies" : " does not verify"));
        Config other = config;
        other.checkpoint.every = 0;
        other.checkpoint.verify_hashes = verify;
        std::string said;
        try {
          use(other, world);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::checkpoint);
          said = error.what();
        }
        EXPECT_EQ(said.find("damaged") != std::string::npos, verify) << said;
      });
}

TEST(InitialWeights, EvalAndGenerateTakeThem) {
  const std::string folder = temporary_folder(), config = folder + "/run.toml";
  std::ofstream(config) << R"(
[model]
hidden_size = 12
num_hidden_layers = 2
num_attention_heads = 3
vocab_size = 256
max_position_embeddings = 8
[data]
kind = "synthetic"
sequence_length = 8
samples = 48
[batch]
global = 12
[train]
steps = 2
run_dir = ")" << folder << "/run\"\n";
  run({"train", config});
  run({"ckpt", "export", folder + "/run", folder + "/out"});
  const auto loss = [&](const std::string& path) {
    const auto finished = run_phalanx({"eval", config, "--checkpoint", path});
    EXPECT_EQ(finished.code, 0) << finished.error;
    return nlohmann::json::parse(finished.out);
  };
  const auto own = loss(folder + "/run"), foreign = loss(folder + "/out");
  EXPECT_EQ(own["loss"], foreign["loss"]);
  EXPECT_EQ(own["step"], 2);
  EXPECT_EQ(foreign["checkpoint"], folder + "/out");
  const auto generated = [&](const std::string& option, const std::string& path) {
    return run_phalanx({"generate", "--prompt", "int ", "--tokens", "20", option, path});
  };
  fs::create_directory(folder + "/run/checkpoints/step-9");
  const auto mine = generated("--checkpoint", folder + "/run");
  EXPECT_EQ(mine.code, 0) << mine.error;
  const size_t told = mine.error.find("a broken checkpoint is passed over, step-9");
  EXPECT_NE(told, std::string::npos) << mine.error;
  EXPECT_EQ(mine.error.find("passed over", told + 30), std::string::npos) << "once";
  EXPECT_EQ(generated("--model", folder + "/out").out, mine.out);
  std::ofstream(folder + "/out/tokenizer.json") << "{}";
  for (const char* option : {"--model", "--checkpoint"}) {
    const auto refused = generated(option, folder + "/out");
    EXPECT_EQ(refused.code, 2);
    expect_contains(refused.error, {"tokenizer of its own (tokenizer.json)"});
  }
}

// A folder of weights does not name its tokenizer: only a vocabulary of 256 is taken for bytes,
// however the weights came here.
TEST(InitialWeights, GenerateRefusesIdsOfAnUnknownTokenizer) {
  const std::string folder = temporary_folder();
  Config config = small_config(Dtype::float32);
  config.model.spec.vocab_size = 300;
  config.lr.warmup_steps = 0;
  config.train.steps = 1;
  config.train.run_dir = folder + "/run";
  train(config, 1);
  run({"ckpt", "export", folder + "/run", folder + "/out"});
  run({"ckpt", "import", folder + "/out", folder + "/imported"});
  for (const std::string path : {"/run", "/out", "/imported"}) {
    SCOPED_TRACE(path);
    const auto finished =
        run_phalanx({"generate", "--prompt", "x", "--tokens", "3", "--checkpoint", folder + path});
    const bool named = path == "/run";  // by its config
    EXPECT_EQ(finished.code, named ? 0 : 2) << finished.error;
    EXPECT_EQ(finished.out.empty(), !named);
    if (!named)
      expect_contains(finished.error,
                      {folder + path, "a vocabulary of 300 is not that of bytes (256)"});
  }
}

}  // namespace
}  // namespace phalanx::testing
