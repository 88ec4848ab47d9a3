// Hugging Face folders as they are found: whole, in parts, old, damaged, and not weights at all.
#include "phalanx/checkpoint/huggingface.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "phalanx/base/error.h"
#include "tests/checkpoint/weight_files.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

at::Tensor ramp(at::IntArrayRef shape, double start, at::ScalarType dtype = at::kFloat) {
  return at::arange(at::empty(shape).numel(), at::kFloat).add(start).to(dtype).view(shape);
}

std::string made(const std::string& name) {
  const std::string folder = temporary_folder() + "/" + name;
  fs::create_directories(folder);
  return folder;
}

at::Tensor read(const Source& source, const std::string& name, at::ScalarType dtype = at::kFloat) {
  for (const auto& entry : source.manifest.entries)
    if (entry.name == name) {
      const at::Tensor to = at::empty(entry.shape, dtype);
      read_box(source, entry, whole_box(entry.shape), to);
      return to;
    }
  ADD_FAILURE() << "no " << name;
  return {};
}

std::vector<std::string> names(const Source& source) {
  std::vector<std::string> found;
  for (const auto& entry : source.manifest.entries) found.push_back(entry.name);
  return found;
}

// What opening `path` says, or "" if it opens.
std::string refusal(const std::string& path) {
  try {
    open_source(path);
    return "";
  } catch (const Error& error) {
    EXPECT_NE(int(error.code()), 0);
    return error.what();
  }
}

void expect_refusal(const std::string& path, const std::vector<std::string>& fragments) {
  const std::string sentence = refusal(path);
  for (const auto& fragment : fragments)
    EXPECT_NE(sentence.find(fragment), std::string::npos)
        << "'" << sentence << "' lacks " << fragment;
}

TEST(HuggingFace, TheIndexSaysWhatLiesWhereAndStrayFilesArePassedOver) {
  const std::string folder = made("parts");
  write_safetensors(folder + "/a.safetensors", {{"x", ramp({2, 3}, 0)}, {"y", ramp({4}, 10)}});
  write_safetensors(folder + "/b.safetensors", {{"z", ramp({5}, 20)}});
  write_index(folder, {{"x", "a.safetensors"}, {"y", "a.safetensors"}, {"z", "b.safetensors"}});
  // Another model's file, which a reader of all files would take.
  write_safetensors(folder + "/model.safetensors", {{"x", ramp({2, 3}, 100)}, {"w", ramp({1}, 0)}});
  ::testing::internal::CaptureStderr();
  const Source source = open_source(folder);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("model.safetensors is passed over"), std::string::npos) << log;
  EXPECT_EQ(source.format, "huggingface");
  EXPECT_EQ(names(source), (std::vector<std::string>{"x", "y", "z"}));
  EXPECT_TRUE(at::equal(read(source, "x"), ramp({2, 3}, 0)));
  EXPECT_TRUE(at::equal(read(source, "z", at::kDouble), ramp({5}, 20, at::kDouble)));

  // Listed, but not all: the index has the last word.
  write_index(folder, {{"x", "a.safetensors"}, {"z", "b.safetensors"}});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(names(open_source(folder)), (std::vector<std::string>{"x", "z"}));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("1 tensors of"), std::string::npos);
}

TEST(HuggingFace, AnAbsentFileAndATensorThatItsFileLacksAreTwoDifferentErrors) {
  const std::string folder = made("torn");
  write_safetensors(folder + "/a.safetensors", {{"x", ramp({2}, 0)}});
  write_index(folder, {{"x", "a.safetensors"}, {"y", "b.safetensors"}, {"z", "b.safetensors"}});
  expect_refusal(folder, {folder, "lacks b.safetensors (2 tensors)", "index.json names"});
  write_safetensors(folder + "/b.safetensors", {{"z", ramp({2}, 0)}});
  expect_refusal(folder, {"/b.safetensors lacks y,", "of another revision"});
  write_index(folder, {{"x", "../a.safetensors"}});
  expect_refusal(folder, {"index.json", "is no file of its folder"});
  write_text(folder + "/model.safetensors.index.json", "{\"weight_map\": 3}");
  expect_refusal(folder, {"index.json", "cannot be used"});
  fs::remove(folder + "/model.safetensors.index.json");
  expect_refusal(folder, {"2 safetensors files", "neither model.safetensors nor"});
  fs::remove(folder + "/b.safetensors");
  EXPECT_EQ(names(open_source(folder)), std::vector<std::string>{"x"});
  EXPECT_EQ(names(open_source(folder + "/a.safetensors")), std::vector<std::string>{"x"});
  expect_refusal(folder + "/none", {"/none holds no tensors", "there is nothing"});
}

TEST(HuggingFace, NamesOfOldFilesBecomeTodaysAndTheirMasksAreNoWeights) {
  const std::string folder = made("old");
  const at::Tensor mask = at::ones({1, 1, 4, 4}, at::kByte);
  const NamedTensors tensors = {{"wte.weight", ramp({3, 2}, 0)},
                                {"h.11.attn.c_attn.bias", ramp({6}, 9)},
                                {"h.0.attn.bias", mask},
                                {"h.0.attn.masked_bias", ramp({}, -1e4)},
                                {"lm_head.weight", ramp({3, 2}, 0)}};
  write_safetensors(folder + "/model.safetensors", tensors);
  EXPECT_EQ(names(open_source(folder)).size(), 5u) << "of a model that nobody names";
  EXPECT_EQ(names(open_source(folder)).back(), "wte.weight");
  write_text(folder + "/config.json", "{\"model_type\": \"gpt2\"}");
  const std::vector<std::string> today = {"lm_head.weight", "transformer.h.11.attn.c_attn.bias",
                                          "transformer.wte.weight"};
  EXPECT_EQ(names(open_source(folder)), today);
  // The mask's type may be one that we do not know.
  std::fstream file(folder + "/model.safetensors", std::ios::in | std::ios::out);
  std::string bytes(4096, ' ');
  file.read(bytes.data(), std::streamsize(bytes.size()));
  const size_t at = bytes.find("\"U8\"");
  ASSERT_NE(at, std::string::npos);
  file.clear();
  file.seekp(std::streamoff(at)).write("\"I8\"", 4);
  file.close();
  EXPECT_EQ(names(open_source(folder)), today);
  write_text(folder + "/config.json", "{\"model_type\": \"other\"}");
  expect_refusal(folder, {"h.0.attn.bias", "elements of type I8"});  // there it may be a weight
  write_text(folder + "/config.json", "{\"model_type\": \"gpt2\"}");
  write_safetensors(folder + "/model.safetensors",
                    {{"wte.weight", ramp({3}, 0)}, {"transformer.wte.weight", ramp({3}, 0)}});
  expect_refusal(folder, {"transformer.wte.weight (parameter) twice", "with and without"});
  write_safetensors(folder + "/model.safetensors",
                    {{"x", ramp({3}, 0)}, {"x:exp_avg", ramp({3}, 1)}});
  const Source state = open_source(folder);
  ASSERT_EQ(state.manifest.entries.size(), 2u);
  EXPECT_EQ(state.manifest.entries[0].name + state.manifest.entries[0].role, "xexp_avg");
}

TEST(HuggingFace, WhatIsNoFileOfWeightsIsNamed) {
  const std::string folder = made("pointers"), file = folder + "/model-00001-of-00002.safetensors";
  write_safetensors(folder + "/model-00002-of-00002.safetensors", {{"y", ramp({2}, 0)}});
  write_index(folder, {{"x", "model-00001-of-00002.safetensors"},
                       {"y", "model-00002-of-00002.safetensors"}});
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
      "size 4989273344\n";
  write_text(file, pointer);
  expect_refusal(folder, {file, "Git LFS pointer", "4989273344 bytes", "not downloaded"});
  write_text(file, "\n<!DOCTYPE html>\n<html><body>404</body></html>\n");
  expect_refusal(folder, {file, "HTML page"});
  write_text(file, "");
  expect_refusal(folder, {file, "is empty"});
  write_text(file, "short");
  expect_refusal(folder, {file, "5 bytes"});
  write_text(folder + "/model.safetensors.index.json", pointer);
  expect_refusal(folder, {"index.json is a Git LFS pointer"});
}

TEST(HuggingFace, BytesBehindTheLastTensorAndAnyLengthOfHeader) {
  const std::string folder = made("bytes"), file = folder + "/model.safetensors";
  write_safetensors(file, {{"x", ramp({2}, 0)}});
  std::ofstream(file, std::ios::app) << std::string(16, '\0');
  expect_refusal(folder, {file, "16 bytes too many"});

  // A header may be padded to any length: around every size that a buffer is likely to have.
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const at::Tensor x = ramp({2}, 7);
  for (const int64_t size : {512, 1024, 4096, 8192, 16384, 65536, 100'000, 1 << 20, 8 << 20})
    for (int64_t length = size - 16; length <= size + 16; ++length) {
      if (size > 100'000 && length % 8 != 0 && length != size - 1 && length != size + 1) continue;
      SCOPED_TRACE(length);
      std::string bytes(8, '\0');
      std::memcpy(bytes.data(), &length, 8);
      bytes += header + std::string(size_t(length) - header.size(), ' ');
      bytes.append(static_cast<const char*>(x.const_data_ptr()), 8);
      write_text(file, bytes);
      const Source source = open_source(folder);
      ASSERT_TRUE(at::equal(read(source, "x"), x));
    }
}

TEST(HuggingFace, QuantisedWeightsAreRefusedByTheNameOfTheirMethod) {
  const std::string folder = made("quantised");
  write_text(folder + "/config.json", R"({"model_type": "llama", "torch_dtype": "float32",
    "rope_scaling": {"type": "linear", "factor": 8.0},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": true}})");
  const std::string header = R"({"q.weight":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                             R"("q.weight.SCB":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})";
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  write_text(folder + "/model.safetensors", bytes + header + std::string(8, 'x'));
  expect_refusal(folder, {"quantization_config", "bitsandbytes", "load_in_8bit"});
  fs::remove(folder + "/config.json");
  expect_refusal(folder, {"q.weight", "elements of type I8"});
}

}  // namespace
}  // namespace phalanx::testing
