// What loading on other ranks costs: bytes and memory, counted by the kernel for each process.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/device/memory.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

constexpr int64_t megabyte = 1 << 20;

int64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string key;
  int64_t value = 0;
  counters >> key >> value;  // rchar
  return value;
}

int64_t status(const std::string& wanted) {  // bytes
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(wanted)) return std::stoll(line.substr(wanted.size() + 1)) * 1024;
  return -1;
}

struct Shape {
  std::string name;
  std::vector<int64_t> shape;
};
const std::vector<Shape> model = {{"wte", {6000, 1024}},
                                  {"up", {1024, 4096}},
                                  {"down", {4096, 1024}},
                                  {"cube", {64, 128, 512}},
                                  {"bias", {4096}}};
const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true},
                                          {"exp_avg", at::kFloat, true}};

// Flat ranges, as FSDP holds them.
std::vector<StateEntry> flat(int rank, int ranks, bool filled) {
  std::vector<ParameterSpec> specs;
  for (const auto& [name, shape] : model)
    specs.push_back(whole_parameter(name, name, shape, Kind::weight, {}));
  return testing::flat_state(specs, roles, rank, ranks, filled);
}

// The last dimension over the ranks, as tensor parallelism holds half of the weights.
std::vector<StateEntry> columns(int rank, int ranks) {
  std::vector<StateEntry> state;
  for (const auto& role : roles)
    for (const auto& [name, shape] : model) {
      Box box = whole_box(shape);
      box.size.back() /= ranks;
      box.offset.back() = rank * box.size.back();
      state.push_back(
          {name, role.name, Dtype::float32, shape, {{box, at::full(box.size, 254, role.dtype)}}});
    }
  return state;
}

// Two ranks save 150 MB and end; four load, each a quarter. Bytes read are those needed and at most
// a twentieth more; memory beyond the tensors is a buffer, not a file or a whole tensor.
TEST(Cost, AReshardedLoadReadsWhatItNeedsInBoundedMemory) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(2, [&](World& world) {
    const auto group = world.group("world", std::vector<int>{0, 1});
    save_checkpoint(*group, folder, {.step = 1}, flat(group->rank(), 2, true), 0);
  });
  for (bool flat_cut : {true, false})
    testing::run_ranks(4, [&](World& world) {
      SCOPED_TRACE(flat_cut ? "flat" : "columns");
      const auto group = world.group("world", std::vector<int>{0, 1, 2, 3});
      const auto state = flat_cut ? flat(group->rank(), 4, false) : columns(group->rank(), 4);
      int64_t needed = 0;
      for (const auto& entry : state)
        for (const auto& part : entry.parts) needed += static_cast<int64_t>(part.local.nbytes());
      EXPECT_GT(needed, 30 * megabyte);
      std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again
      const int64_t read_before = bytes_read(), memory_before = status("VmRSS");
      load_checkpoint(*group, folder + "/step-1", state);
      const int64_t read = bytes_read() - read_before, peak = status("VmHWM") - memory_before;
      EXPECT_GE(read, needed);
      EXPECT_LE(static_cast<double>(read), 1.05 * static_cast<double>(needed));
      EXPECT_LT(peak, 32 * megabyte);
      EXPECT_EQ(testing::differences(state), "");
    });
}

// Each rank holds the text of the manifest, and not that of every rank.
TEST(Cost, AManifestOfMegabytesIsNotGatheredOnceForEachRank) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(4, [&](World& world) {
    const auto group = world.group("world", std::vector<int>{0, 1, 2, 3});
    count_memory();
    std::vector<StateEntry> state;
    for (int i = group->rank(); i < 8000; i += 4)
      state.push_back(whole_entry(text("blocks.", i, ".a_name_as_long_as_they_are.weight"),
                                  "parameter", at::full({2}, i)));
    save_checkpoint(*group, folder, {.step = 1}, state, 0);
    const auto manifest =
        static_cast<int64_t>(std::filesystem::file_size(folder + "/step-1/manifest.json"));
    EXPECT_GT(manifest, 2 * megabyte);
    reset_peak_memory();
    const int64_t before = tensor_memory().current;
    load_checkpoint(*group, folder + "/step-1", state);
    EXPECT_LT(tensor_memory().peak - before, 2 * manifest);
  });
}

}  // namespace
}  // namespace phalanx
