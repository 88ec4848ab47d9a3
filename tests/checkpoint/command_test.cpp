// `phalanx ckpt` and `phalanx data`, called as the program calls them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/data/token_file.h"
#include "phalanx/data/tokenizer.h"
#include "tests/checkpoint/call_command.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

extern "C" int phalanx_command_data(int argc, char** argv);

namespace phalanx {
namespace {

namespace fs = std::filesystem;

using testing::call;
using testing::ckpt;
using testing::expect;

TEST(DataCommand, TokenizesAndInspects) {
  const std::string folder = testing::temporary_folder(), out = folder + "/out.tokens";
  fs::create_directories(folder + "/text/deep");
  fs::create_directories(folder + "/void");
  std::ofstream(folder + "/text/b.h") << "second";
  std::ofstream(folder + "/text/deep/c.cpp") << "third";
  std::ofstream(folder + "/text/a.h") << "first";
  std::ofstream(folder + "/text/skipped.bin") << "binary";
  std::ofstream(folder + "/text/empty.h");
  const auto data = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "data");
    return call(phalanx_command_data, std::move(arguments));
  };
  const std::vector<std::string> good = {"tokenize", "--output",    out,    "--extension",
                                         ".h",       "--extension", ".cpp", folder + "/text"};
  expect(data(good), 0, {"documents", "3", "tokens", "16", "byte"});
  auto with_end = good;
  with_end.insert(with_end.end(), {"--append-end-of-document", "--json"});
  const auto json = nlohmann::json::parse(data(with_end).output);
  EXPECT_EQ(json["documents"], 3);
  EXPECT_EQ(json["tokens"], 19) << "one end per document";
  EXPECT_EQ(json["end_of_document"], 255);
  EXPECT_EQ(nlohmann::json::parse(data({"inspect", out, "--json"}).output), json);
  const TokenFile file(out);
  std::vector<int64_t> ids(19);
  file.read(0, 19, ids.data());
  EXPECT_EQ(byte_tokenizer()->decode(ids), "firstsecondthird") << "sorted by path";

  expect(data({"tokenize", "-o", out + "2", folder + "/none"}), 5, {"no file or folder", "none"});
  expect(data({"tokenize", "-o", out + "2", folder + "/void"}), 5, {"void has no file"});
  expect(data({"tokenize", "-o", out + "2", "--extension", ".py", folder + "/text"}), 5,
         {"ends in .py"});
  expect(data({"tokenize", "-o", out + "2", folder + "/text/empty.h"}), 5, {"0 documents"});
  expect(data({"tokenize", "-o", folder + "/text/a.h", folder + "/text/a.h"}), 5,
         {"also an input"});
  expect(data({"tokenize", "-o", out + "2", "--tokenizer", "bpe", folder + "/text"}), 2, {"'bpe'"});
  expect(data({"tokenize", folder + "/text"}), 2, {"--output"});
  EXPECT_FALSE(fs::exists(out + "2") || fs::exists(out + "2.tmp"));
  EXPECT_EQ(read_file(folder + "/text/a.h", ExitCode::data), "first");
  std::fstream(out, std::ios::in | std::ios::out).seekp(130).put('#');
  expect(data({"inspect", out}), 5, {"out.tokens is damaged"});
  expect(data({"inspect", folder + "/text/b.h"}), 5, {"no token file"});
}

TEST(CkptCommand, InspectsAndVerifies) {
  const std::string folder = testing::temporary_folder(), path = folder + "/step-12";
  const auto errors = testing::ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = testing::flat_state(
        testing::small_model(), {{"parameter", at::kFloat, true}}, world.rank(), 2, true);
    RunState run{.step = 12, .consumed_samples = 96, .config = "a = 1\n"};
    run.versions["phalanx"] = "0.1";
    run.values["loss_scale"] = 2.0;
    save_checkpoint(world, folder, run, state, 0);
  });
  ASSERT_EQ(errors[0], "");
  expect(
      ckpt({"inspect", path}), 0,
      {"step", "12", "96", "loss_scale", "2.0", "wte.weight", "[33, 7]", "float32", "11 tensors"});
  const auto json = nlohmann::json::parse(ckpt({"inspect", "--json", path}).output);
  EXPECT_EQ(json["step"], 12);
  EXPECT_EQ(json["tensors"].size(), 11u);
  EXPECT_EQ(json["config"], "a = 1\n");
  expect(ckpt({"verify", path}), 0, {"is whole", "step 12"});
  expect(ckpt({"verify", folder}), 0, {path + " is whole"});
  EXPECT_EQ(nlohmann::json::parse(ckpt({"verify", "--json", path}).output)["defects"].size(), 0u);

  const std::string file = path + "/state-00001-of-00002.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(file));
  std::fstream(file, std::ios::in | std::ios::out).seekp(size - 1).put('\x55');
  expect(ckpt({"verify", path}), 1, {file, "damaged", "hash"});
  EXPECT_EQ(nlohmann::json::parse(ckpt({"verify", "--json", path}).output)["defects"].size(), 1u);
  fs::resize_file(file, size - 1);
  expect(ckpt({"verify", path}), 1, {file, "the manifest says"});
  fs::resize_file(path + "/manifest.json", 77);
  expect(ckpt({"verify", path}), 6, {"manifest.json", "damaged"});
  expect(ckpt({"inspect", folder}), 6, {"step-12", "damaged"});
  expect(ckpt({"verify", folder + "/step-13"}), 6, {"there is no checkpoint", "step-13"});
  expect(ckpt({"inspect"}), 2, {"checkpoint is required"});
}

TEST(CkptCommand, WhatIsNoCheckpointIsToldWithWhatToDo) {
  const std::string folder = testing::temporary_folder(), out = folder + "/out";
  const std::string path =
      save_checkpoint(*single_communicator("alone"), folder + "/checkpoints", {.step = 1},
                      std::vector{whole_entry("w", "parameter", at::ones({2}))}, 0);
  expect(ckpt({"verify", path}), 0, {" 1 tensor, 1 file, "});
  expect(ckpt({"export", "--format", "dcp", path, out}), 0, {});
  fs::create_directory(folder + "/hf");
  fs::copy_file(path + "/state-00000-of-00001.safetensors", folder + "/hf/model.safetensors");
  for (const auto& [place, form] : {std::pair(out, "PyTorch's distributed checkpoint"),
                                    std::pair(folder + "/hf", "Hugging Face")}) {
    SCOPED_TRACE(form);
    expect(ckpt({"verify", place}), 6, {text("weights of ", form), "no hashes", "ckpt import"});
    expect(ckpt({"copy", place, folder + "/x"}), 6, {text("weights of ", form), "ckpt import"});
  }
  EXPECT_FALSE(fs::exists(folder + "/x"));
  expect(ckpt({"verify", path + "/manifest.json"}), 6,
         {"manifest.json: Not a directory; name the folder of a checkpoint"});
  expect(ckpt({"inspect", "/dev/null"}), 6, {"/dev/null: Not a directory; name the folder"});
  fs::remove(path + "/manifest.json.xxh128");
  for (const char* command : {"verify", "inspect"})
    expect(ckpt({command, path}), 6, {path, "broken checkpoint", "no manifest.json.xxh128"});
}

// Exit code 1 is for checkpoints that differ or are damaged, not for paths that lead nowhere.
TEST(CkptCommand, APathThatCannotBeLookedAtIsAnErrorOfTheCheckpoint) {
  const std::string folder = testing::temporary_folder();
  const std::string path =
      save_checkpoint(*single_communicator("alone"), folder, {.step = 1},
                      std::vector{whole_entry("w", "parameter", at::ones({2}))}, 0);
  const std::string impossible = folder + "/" + std::string(300, 'x');
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"diff", path, impossible},
        {"inspect", impossible},
        {"export", "--format", "dcp", path, impossible},
        {"verify", impossible}})
    expect(ckpt(arguments), 6, {impossible, "File name too long"});
  const auto data = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "data");
    return call(phalanx_command_data, std::move(arguments));
  };
  expect(data({"tokenize", "-o", folder + "/out", impossible}), 5,
         {impossible, "File name too long"});
}

}  // namespace
}  // namespace phalanx
