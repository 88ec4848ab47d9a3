// Weights that leave: `phalanx ckpt export`, and what `transformers` makes of them.
#include "phalanx/checkpoint/export.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/dcp.h"
#include "phalanx/checkpoint/weights.h"
#include "phalanx/config/write.h"
#include "phalanx/device/memory.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/spec/huggingface.h"
#include "phalanx/train/saved_config.h"
#include "tests/checkpoint/call_command.h"
#include "tests/checkpoint/exported_model.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(Export, EveryFloatIsOfTheTypeAskedForAndTheConfigSaysSo) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  std::vector<StateEntry> entries = entries_of(*model);
  const at::Tensor counts = at::arange(5, at::kLong), half = at::arange(3, at::kHalf);
  entries.push_back(whole_entry("counts", "parameter", counts));
  entries.push_back(whole_entry("half", "parameter", half));
  entries.push_back(whole_entry("wte.weight", "exp_avg", at::ones({2})));  // not exported
  Config config;
  config.model.spec = model->spec();
  const auto alone = single_communicator("world");
  save_checkpoint(*alone, folder + "/run/checkpoints", {.step = 2, .config = to_toml(config)},
                  entries, 0);
  const auto types = [&](const std::string& to) {
    std::map<std::string, int> histogram;
    for (const auto& entry : open_source(to).manifest.entries) ++histogram[name(entry.dtype)];
    return histogram;
  };
  using Histogram = std::map<std::string, int>;
  const int floats = static_cast<int>(entries.size()) - 3;
  for (const std::string dtype : {"as-saved", "float32", "bfloat16", "float16"}) {
    SCOPED_TRACE(dtype);
    const std::string to = folder + "/" + dtype;
    const auto result = ckpt({"export", folder + "/run", to, "--dtype", dtype, "--json"});
    expect(result, 0, {});
    const json written = json::parse(result.output);
    EXPECT_EQ(written["tensors"], floats + 2);
    EXPECT_EQ(written["files"], 1);
    const std::string type = dtype == "as-saved" ? "float32" : dtype;
    EXPECT_EQ(written["dtype"], type);
    EXPECT_EQ(config_of(to)["torch_dtype"], type);
    EXPECT_EQ(types(to), dtype == "as-saved"
                             ? (Histogram{{"float16", 1}, {"float32", floats}, {"int64", 1}})
                             : (Histogram{{"int64", 1}, {type, floats + 1}}));
    const Source source = open_source(to);
    for (const auto& entry : source.manifest.entries)
      if (entry.name == "transformer.wpe.weight") {
        const at::Tensor values = at::empty(entry.shape, scalar_type(entry.dtype));
        read_box(source, entry, whole_box(entry.shape), values);
        EXPECT_TRUE(at::equal(
            values, model->root_parameters()[1]->tensor.detach().to(values.scalar_type())));
      }
  }
  EXPECT_TRUE(at::equal(counts, at::arange(5, at::kLong)));
  expect(ckpt({"export", folder + "/run", folder + "/float32"}), 6, {"/float32", "exists already"});
  expect(ckpt({"export", folder + "/run", folder + "/x", "--dtype", "int8"}), 2, {"int8"});
  expect(ckpt({"export", folder + "/run", folder + "/x", "--format", "hugging"}), 2,
         {"hugging", "did you mean 'huggingface'"});
  expect(ckpt({"export", folder + "/run", folder + "/x", "--max-file-size", "5 lots"}), 2,
         {"5 lots", "5GB"});
  expect(ckpt({"export", folder + "/nothing", folder + "/x"}), 6, {"nothing"});
  EXPECT_FALSE(fs::exists(folder + "/x"));
}

TEST(Export, BuffersGetTheTypeAskedForInEveryFormAndOptimizerStatesDoNot) {
  const std::string folder = temporary_folder();
  const at::Tensor mask = at::arange(6, at::kLong).remainder(2).eq(1).view({2, 3});
  const auto alone = single_communicator("world");
  const Source source = open_source(
      save_checkpoint(*alone, folder + "/checkpoints", {.step = 2},
                      std::vector{whole_entry("count", "buffer", at::full({}, 7, at::kLong)),
                                  whole_entry("mask", "buffer", mask),
                                  whole_entry("mean", "buffer", at::arange(64, at::kFloat)),
                                  whole_entry("w", "parameter", at::arange(3, at::kHalf)),
                                  whole_entry("w", "exp_avg", at::ones({3})),
                                  whole_entry("w", "step", at::full({}, 2, at::kLong))},
                      0));
  const ExportOptions options{.dtype = Dtype::bfloat16};
  EXPECT_EQ(export_huggingface(source, folder + "/huggingface", "{}", options).dtype,
            Dtype::bfloat16);
  EXPECT_EQ(export_dcp(source, folder + "/dcp", options).dtype, Dtype::bfloat16);
  EXPECT_EQ(export_dcp(source, folder + "/as-saved").dtype, Dtype::float32) << "of most elements";
  using Types = std::map<std::string, std::string>;
  const Types weights = {
      {"count", "int64"}, {"mask", "bool"}, {"mean", "bfloat16"}, {"w", "bfloat16"}};
  for (const std::string form : {"huggingface", "dcp"}) {
    SCOPED_TRACE(form);
    const Source exported = open_source(folder + "/" + form);
    Types found;
    for (const auto& entry : exported.manifest.entries) {
      if (entry.role == "exp_avg") {
        EXPECT_EQ(form, "dcp");
        EXPECT_EQ(entry.dtype, Dtype::float32);
        continue;
      }
      found[entry.name] = name(entry.dtype);
      if (entry.name != "mask") continue;
      const at::Tensor values = at::empty({2, 3}, at::kBool);
      read_box(exported, entry, whole_box({2, 3}), values);
      EXPECT_TRUE(at::equal(values, mask));
    }
    EXPECT_EQ(found, weights);
  }
}

// What is made of a damaged checkpoint would look whole.
TEST(Export, ADamagedCheckpointIsRefusedBeforeAnythingIsWritten) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  flip_last_byte(path + "/state-00000-of-00001.safetensors");
  for (const char* format : {"huggingface", "dcp"}) {
    SCOPED_TRACE(format);
    expect(ckpt({"export", path, folder + "/out", "--format", format}), 6,
           {"state-00000-of-00001.safetensors is damaged", "the manifest's hash"});
    for (const auto& entry : fs::directory_iterator(folder))
      EXPECT_EQ(entry.path().filename().string(), "checkpoints");
  }
}

// What the library's export_dcp() writes is compared with PyTorch in dcp_test.cpp.
TEST(Export, ADcpFolderHasEveryTensorAndComesBack) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  const auto result = ckpt(
      {"export", path, folder + "/out", "--format", "dcp", "--max-file-size", "10KB", "--json"});
  expect(result, 0, {});
  const json written = json::parse(result.output);
  EXPECT_EQ(written["format"], "dcp");
  EXPECT_EQ(written["tensors"], entries_of(*model).size());
  EXPECT_GT(written["files"], 1);
  EXPECT_EQ(open_source(folder + "/out").format, "dcp");
  EXPECT_EQ(tensors_of(folder + "/out"), tensors_of(path));
  expect(ckpt({"diff", path, folder + "/out"}), 0, {});
  expect(ckpt({"export", path, folder + "/out", "--format", "dcp"}), 6, {"exists already"});
}

TEST(Export, SeveralFilesAndAnIndexThatComeBackTheSame) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  expect(ckpt({"export", path, folder + "/one"}), 0, {"/one: 28 tensors", "1 file,"});
  expect(ckpt({"export", path, folder + "/many", "--max-file-size", "10KB"}), 0, {"files"});
  size_t files = 0;
  for (const auto& item : fs::directory_iterator(folder + "/many")) {
    if (item.path().extension() != ".safetensors") continue;
    ++files;
    const InputFile file(item.path().string(), ExitCode::checkpoint);
    const auto tensors = read_safetensors_header(file);
    int64_t bytes = 0;
    for (const auto& tensor : tensors) bytes += tensor.bytes;
    EXPECT_TRUE(bytes <= 10'000 || tensors.size() == 1) << item.path();
  }
  EXPECT_GT(files, 4u);
  const json index =
      json::parse(read_file(folder + "/many/model.safetensors.index.json", ExitCode::checkpoint));
  EXPECT_EQ(index["weight_map"].size(), 28u);
  EXPECT_EQ(index["metadata"]["total_size"], parameter_count(model->spec()) * 4);
  EXPECT_EQ(tensors_of(folder + "/one"), tensors_of(path));
  EXPECT_EQ(tensors_of(folder + "/many"), tensors_of(path));
  for (const auto& item : fs::directory_iterator(folder))
    EXPECT_EQ(item.path().string().find("unfinished"), std::string::npos);
}

TEST(Export, KeepsTheImportedConfigAndChangesWhatChanged) {
  const ModelSpec spec = small_model_spec();
  json imported = json::parse(huggingface_config(spec));
  imported["_name_or_path"] = "somewhere";
  imported["task_specific_params"] = {{"text-generation", {{"max_length", 50}}}};
  imported.erase("torch_dtype");
  imported["dtype"] = "float32";
  const std::string written = imported.dump(4);
  EXPECT_EQ(update_huggingface_config(written, spec), written);
  EXPECT_EQ(update_huggingface_config(written, Dtype::float32), written);
  ModelSpec other = spec;
  other.attn_pdrop = 0.5;
  json expected = imported;
  expected["attn_pdrop"] = 0.5;
  EXPECT_EQ(json::parse(update_huggingface_config(written, other)), expected);
  expected = imported;
  expected["dtype"] = "bfloat16";
  EXPECT_EQ(json::parse(update_huggingface_config(written, Dtype::bfloat16)), expected);
  imported.erase("dtype");
  const std::string silent = imported.dump();
  EXPECT_EQ(update_huggingface_config(silent, Dtype::float32), silent);
  EXPECT_EQ(json::parse(update_huggingface_config(silent, Dtype::float16))["torch_dtype"],
            "float16");

  // In the run's own checkpoints.
  const std::string folder = temporary_folder();
  auto model = model_of(spec, at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model, written);
  expect(ckpt({"export", path, folder + "/out"}), 0, {});
  EXPECT_EQ(read_file(folder + "/out/config.json", ExitCode::checkpoint), written);
  expect(ckpt({"inspect", path}), 0, {"huggingface_config"});
}

// Memory is that of the buffers, whatever the size of a tensor.
TEST(Export, HoldsLessOfATensorThan64MiB) {
  count_memory();
  const std::string folder = temporary_folder();
  fs::create_directories(folder + "/large");
  const int64_t rows = 40 << 10;  // 160 MiB of zeros, which the disk does not store
  std::vector<TensorInfo> infos = {{"wte.weight", Dtype::float32, {rows, 1024}, 0, rows * 4096}};
  write_text(folder + "/large/model.safetensors", safetensors_header(infos, {}));
  fs::resize_file(folder + "/large/model.safetensors", uint64_t(infos[0].offset + infos[0].bytes));
  write_text(folder + "/large/config.json", R"({"model_type": "gpt2"})");
  const Source source = open_source(folder + "/large");
  for (const std::optional<Dtype> dtype :
       {std::optional<Dtype>(), std::optional(Dtype::bfloat16)}) {
    reset_peak_memory();
    const int64_t before = tensor_memory().current;
    export_huggingface(source, text(folder, "/", dtype ? "bfloat16" : "same"), "{}", {dtype});
    EXPECT_LT(tensor_memory().peak - before, 64 << 20);
  }
  reset_peak_memory();
  const int64_t before = tensor_memory().current;
  const std::string path = import_checkpoint(source, folder + "/checkpoints", {});
  EXPECT_LT(tensor_memory().peak - before, 64 << 20);
  expect(ckpt({"verify", path}), 0, {"is whole"});
}

TEST(Export, TransformersComputesTheSameFromItAndWeFromItsFolders) {
  const std::string venv = PHALANX_SOURCE_DIR "/.venv";
  if (std::system(("ls -d " + venv + "/lib/*/site-packages/transformers >/dev/null 2>&1").c_str()))
    GTEST_SKIP() << "no transformers in .venv: tools/install.sh test";
  const std::string folder = temporary_folder();
  const at::Tensor tokens = at::arange(14, at::kLong).mul(29).remainder(61).view({2, 7});
  const auto write_tokens = [&](const std::string& to) {
    write_text(to + "/tokens.bin",
               std::string(static_cast<const char*>(tokens.const_data_ptr()), tokens.nbytes()));
  };
  std::map<std::string, at::Tensor> expected;
  struct Case {
    bool tied;
    int64_t heads;
    std::vector<std::string> options;
  };
  const std::map<std::string, Case> cases = {
      {"float64", {true, 2, {}}},
      {"many", {true, 4, {"--max-file-size", "10KB", "--dtype", "float32"}}},
      {"untied", {false, 1, {}}},
      {"bfloat16", {true, 6, {"--dtype", "bfloat16"}}}};
  for (const auto& [name, made] : cases) {
    auto model = model_of(small_model_spec(made.tied, made.heads));
    const std::string path = saved(folder + "/checkpoints/" + name, *model);
    const std::string to = folder + "/exported/" + name;
    fs::create_directories(folder + "/exported");
    std::vector<std::string> arguments = {"export", path, to};
    arguments.insert(arguments.end(), made.options.begin(), made.options.end());
    expect(ckpt(arguments), 0, {});
    write_tokens(to);
    for (const Parameter& parameter : parameters_of(*model)) {  // what the file rounds
      const at::ScalarType type = name == "many"       ? at::kFloat
                                  : name == "bfloat16" ? at::kBFloat16
                                                       : at::kDouble;
      parameter->tensor.detach().copy_(parameter->tensor.detach().to(type));
    }
    expected[name] = logits_of(*model, tokens);
  }
  const std::string command =
      text("'", venv, "/bin/python' '", PHALANX_SOURCE_DIR,
           "/tests/checkpoint/huggingface_oracle.py' '", folder, "' > '", folder, "/out' 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0) << read_file(folder + "/out", ExitCode::checkpoint);

  const auto logits_in = [](const std::string& from) {
    const std::string bytes = read_file(from + "/logits.bin", ExitCode::checkpoint);
    const at::Tensor logits = at::empty({2, 7, 61}, at::kDouble);
    EXPECT_EQ(bytes.size(), logits.nbytes());
    std::memcpy(logits.mutable_data_ptr(), bytes.data(), logits.nbytes());
    return logits;
  };
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).norm() / b.norm()).item<double>();
  };
  for (const auto& [name, logits] : expected) {
    SCOPED_TRACE(name);
    const std::string from = folder + "/exported/" + name;
    const json info = json::parse(read_file(from + "/info.json", ExitCode::checkpoint));
    EXPECT_EQ(info["problems"], json::object());
    EXPECT_EQ(info["dtype"], "torch." + (name == "many"     ? "float32"
                                         : name == "untied" ? "float64"
                                                            : name));
    EXPECT_LT(error(logits_in(from), logits), 1e-12);
  }
  const auto alone = single_communicator("world");
  std::vector<std::string> made;
  for (const auto& item : fs::directory_iterator(folder + "/made")) {
    const std::string from = item.path().string(), name = item.path().filename().string();
    SCOPED_TRACE(name);
    made.push_back(name);
    const ModelSpec spec = read_huggingface_config(from);
    auto model = make_model(spec, at::kDouble);
    allocate_and_initialize(parameters_of(*model), 0);
    EXPECT_EQ(load_weights(*alone, from, spec, entries_of(*model)).format, "huggingface");
    const std::string tokens_bytes = read_file(from + "/tokens.bin", ExitCode::checkpoint);
    const at::Tensor theirs = at::empty({2, 7}, at::kLong);
    std::memcpy(theirs.mutable_data_ptr(), tokens_bytes.data(), theirs.nbytes());
    EXPECT_LT(error(logits_of(*model, theirs), logits_in(from)), 1e-12);
    // In and out again: the same bytes under today's names, and the same config.
    expect(ckpt({"import", from, folder + "/in/" + name}), 0, {"step-0"});
    expect(ckpt({"export", folder + "/in/" + name, folder + "/again/" + name}), 0, {});
    EXPECT_EQ(tensors_of(folder + "/again/" + name), tensors_of(from));
    EXPECT_EQ(config_of(folder + "/again/" + name), config_of(from));
  }
  EXPECT_EQ(made.size(), 8u);
}

}  // namespace
}  // namespace phalanx::testing
