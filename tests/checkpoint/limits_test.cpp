// Input whose size or values would cost time or memory without end.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/pickle.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

using testing::expect_contains;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    return error.what();
  }
  return "nothing was thrown";
}

// 200,000 boxes that all begin at the same row, column or plane: pairs would be 20 billion.
TEST(Limits, BoxesAlongAnyDimensionAreComparedSoon) {
  constexpr int64_t count = 200'000;
  for (size_t dim = 0; dim < 3; ++dim) {
    SCOPED_TRACE(dim);
    std::vector<int64_t> shape = {2, 2, 2};
    shape[dim] = count;
    std::vector<Box> boxes(count, Box{{0, 0, 0}, {2, 2, 2}});
    for (int64_t i = 0; i < count; ++i) boxes[i].offset[dim] = i, boxes[i].size[dim] = 1;
    EXPECT_EQ(cover_defect(shape, boxes), "");
    boxes[7].offset[dim] = 8;
    expect_contains(cover_defect(shape, boxes), {"overlap"});
    boxes[7].size[dim] = 0;
    expect_contains(cover_defect(shape, boxes), {"4 of the 800000 elements"});
  }
}

// Columns in one row beside rows: many of them meet, whichever way one looks.
TEST(Limits, BoxesThatCannotBeComparedSoonAreRefused) {
  constexpr int64_t count = 10'000;
  std::vector<Box> boxes;
  for (int64_t i = 0; i < count; ++i) {
    boxes.push_back({{0, i}, {1, 1}});
    boxes.push_back({{i + 1, 0}, {1, count}});
  }
  expect_contains(cover_defect({count + 1, count}, boxes), {"20000 boxes are too many"});
}

TEST(Limits, SumsOfAManifestFitIntoNumbers) {
  Manifest manifest;
  manifest.created = 1'000'000'000;
  EXPECT_EQ(parse_manifest(to_json(manifest), "m").created, manifest.created);
  for (const int64_t created : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    manifest.created = created;
    expect_contains(error_of([&] { parse_manifest(to_json(manifest), "m"); }),
                    {text("m cannot be used: it says that it was created ", created)});
  }
  manifest.created = 0;
  manifest.files = {{"a", std::numeric_limits<int64_t>::max()}, {"b", 1}};
  expect_contains(error_of([&] { parse_manifest(to_json(manifest), "m"); }),
                  {"its files have more bytes"});
  manifest.files.clear();
  for (const char* name : {"x", "y"})
    manifest.entries.push_back({name, "parameter", Dtype::uint8, {int64_t{1} << 62}, {}});
  for (auto& entry : manifest.entries) {
    manifest.files[entry.name] = int64_t{1} << 61;
    for (int half = 0; half < 2; ++half) {
      const int64_t size = int64_t{1} << 61;
      entry.parts.push_back({{{half * size}, {size}}, entry.name, 0, size, Hash{}, {}});
    }
  }
  expect_contains(error_of([&] { parse_manifest(to_json(manifest), "m"); }),
                  {"its tensors have more bytes"});
}

TEST(Limits, ATextOfGigabytesIsNotRead) {
  const std::string folder = testing::temporary_folder();
  std::ofstream(folder + "/config.json") << "{}";
  EXPECT_EQ(read_text(*open_storage(folder), "config.json"), "{}");
  std::filesystem::resize_file(folder + "/config.json", longest_text + 1);  // takes no space
  expect_contains(error_of([&] { read_text(*open_storage(folder), "config.json"); }),
                  {"config.json has 1073741825 bytes"});
}

// One value, stored under a new number by every byte.
TEST(Limits, APickleStoresNoMoreThanItHolds) {
  const std::string begin = std::string("\x80\x02", 2) + "N";
  EXPECT_EQ(Pickle(begin + std::string(100, '\x94') + ".", "p").root(), 0u);
  expect_contains(error_of([&] { Pickle(begin + std::string(20'000, '\x94') + ".", "p"); }),
                  {"it stores more values than it holds"});
}

}  // namespace
}  // namespace phalanx
