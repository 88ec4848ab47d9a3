// docs/checkpoint.md is enough to read a checkpoint: tools/read_checkpoint.py does, and its values
// are ours.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/device/dtype.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr const char* python = PHALANX_SOURCE_DIR "/.venv/bin/python";
// Loads a checkpoint and writes {"name:role": [shape, values]} as JSON.
constexpr const char* script =
    "import json, sys; sys.path.insert(0, sys.argv[1]); import read_checkpoint as r\n"
    "print(json.dumps({n + ':' + o: [list(a.shape), a.astype('f8').ravel().tolist()]\n"
    "                  for (n, o), a in r.load(sys.argv[2]).items()}))";

testing::Finished read_by_python(const std::string& path) {
  return testing::run_program({python, "-B", "-c", script, PHALANX_SOURCE_DIR "/tools", path});
}

bool has_python() { return testing::run_program({python, "-c", "import numpy, xxhash"}).code == 0; }

TEST(Format, AReaderOfSixtyLinesReadsItAll) {
  if (!has_python()) GTEST_SKIP() << "no xxhash in .venv: tools/install.sh test";
  const std::string folder = testing::temporary_folder(), path = folder + "/step-1";
  // Every type; scalars, empty tensors and ragged boxes of three ranks' flat ranges.
  const std::vector<testing::Role> roles = {
      {"parameter", at::kFloat, true}, {"a", at::kDouble, true}, {"b", at::kBFloat16, true},
      {"c", at::kHalf, true},          {"d", at::kLong, true},   {"e", at::kInt, true},
      {"f", at::kShort, true},         {"g", at::kByte, false},  {"h", at::kBool, true}};
  const std::vector<double> odd = {0.1, -2.5e-3, 3e38, -0.0, 1.0 / 3};
  const auto errors = testing::ThreadRanks::run(3, [&](Communicator& world) {
    auto state = testing::flat_state(testing::small_model(), roles, world.rank(), 3, true);
    for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
      state.push_back(whole_entry("odd", toString(dtype), at::tensor(odd, at::kDouble).to(dtype)));
    state.push_back(whole_entry("large", "value", at::tensor({INT64_MIN, INT64_MAX}, at::kLong)));
    save_checkpoint(world, folder, {.step = 1}, state, 0);
  });
  for (const auto& error : errors) ASSERT_EQ(error, "");

  const auto run = read_by_python(path);
  ASSERT_EQ(run.code, 0) << run.error;
  const auto found = nlohmann::json::parse(run.out);
  const auto values_of = [](const at::Tensor& tensor) {
    const at::Tensor flat = tensor.to(at::kDouble).contiguous().view(-1);
    return std::vector<double>(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  };
  const Manifest manifest = read_manifest(path);
  size_t compared = 0, empty = 0, scalars = 0, parts = 0;
  for (const auto& entry : manifest.entries) {
    SCOPED_TRACE(entry.name + ":" + entry.role);
    const auto& [shape, values] = found.at(entry.name + ":" + entry.role)
                                      .get<std::pair<std::vector<int64_t>, std::vector<double>>>();
    EXPECT_EQ(shape, entry.shape);
    ++compared;
    parts = std::max(parts, entry.parts.size());
    if (entry.name == "large") continue;
    if (entry.name == "odd") {
      EXPECT_EQ(values, values_of(at::tensor(odd, at::kDouble).to(scalar_type(entry.dtype))));
      continue;
    }
    empty += values.empty(), scalars += shape.empty();
    EXPECT_EQ(values, values_of(testing::expected(entry.name, entry.role, entry.shape,
                                                  scalar_type(entry.dtype))));
  }
  EXPECT_EQ(compared, found.size());
  EXPECT_TRUE(empty > 0 && scalars > 0 && parts > 3);
  EXPECT_EQ(found.at("large:value")[1], (std::vector<double>{-0x1p63, 0x1p63}));

  const auto print =
      testing::run_program({python, PHALANX_SOURCE_DIR "/tools/read_checkpoint.py", path});
  EXPECT_NE(print.out.find("wte.weight parameter float32 [33, 7]"), std::string::npos) << print.out;
  std::ifstream source(PHALANX_SOURCE_DIR "/tools/read_checkpoint.py");
  EXPECT_LE(std::count(std::istreambuf_iterator<char>(source), {}, '\n'), 60);
}

TEST(Format, TheReaderFindsDamage) {
  if (!has_python()) GTEST_SKIP() << "no xxhash in .venv: tools/install.sh test";
  const std::string folder = testing::temporary_folder(), path = folder + "/step-1";
  const auto errors = testing::ThreadRanks::run(1, [&](Communicator& world) {
    const auto state =
        testing::flat_state(testing::small_model(), {{"parameter", at::kFloat, true}}, 0, 1, true);
    save_checkpoint(world, folder, {.step = 1}, state, 0);
  });
  ASSERT_EQ(errors[0], "");
  const std::string file = path + "/state-00000-of-00001.safetensors";
  const auto size = static_cast<int64_t>(fs::file_size(file));
  // The hashes of the files, by another implementation than ours.
  const auto tool = testing::run_program(
      {python, "-B", "-c",
       "import sys, xxhash; p = sys.argv[1] + '/manifest.json'\n"
       "print(xxhash.xxh3_128_hexdigest(open(p, 'rb').read()) == open(p + '.xxh128').read()[:32])",
       path});
  EXPECT_EQ(tool.out, "True\n") << tool.error;
  std::fstream(file, std::ios::in | std::ios::out).seekp(size - 1).put('\x55');
  const auto flipped = read_by_python(path);
  EXPECT_EQ(flipped.code, 1);
  EXPECT_NE(flipped.error.find("is damaged: its hash is not"), std::string::npos) << flipped.error;
  fs::resize_file(file, size - 1);
  EXPECT_NE(read_by_python(path).error.find("does not have the"), std::string::npos);
  std::fstream(path + "/manifest.json", std::ios::in | std::ios::out).seekp(40).put('#');
  EXPECT_NE(read_by_python(path).error.find("manifest.json is damaged"), std::string::npos);
}

}  // namespace
}  // namespace phalanx
