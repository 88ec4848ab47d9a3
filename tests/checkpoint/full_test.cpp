// The whole state through one rank, in pieces.
#include "phalanx/checkpoint/full.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/comm/world.h"
#include "phalanx/device/memory.h"
#include "phalanx/parallel/parallelize.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<Role> roles = {{"parameter", at::kFloat, true}, {"exp_avg", at::kDouble, true},
                                 {"half", at::kHalf, true},       {"bytes", at::kByte, false},
                                 {"mask", at::kBool, true},       {"step", at::kLong, false}};

// Resident memory in bytes: now, and its peak since the last reset_peak_resident().
int64_t resident(const char* field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  return 0;
}
void reset_peak_resident() { std::ofstream("/proc/self/clear_refs") << "5"; }

TEST(FullState, OneRankWritesWhatAllHoldAndReadsItForAll) {
  const std::string folder = temporary_folder();
  for (const Transport transport : {Transport::shared_memory, Transport::gloo})
    run_ranks(
        3,
        [&](World& world) {
          const auto all = group_of_all_ranks(world);
          const int rank = all->rank();
          const auto specs = small_model();
          const std::string path = text(folder, "/", all->transport());
          // Buffers so small that every tensor goes in several pieces, and larger than all of it.
          for (const int64_t buffer : {40, 1 << 20}) {
            SCOPED_TRACE(buffer);
            const std::string to = text(path, buffer);
            const auto held = flat_state(specs, roles, rank, 3, true);
            save_full(*all, held, to, {.max_file_bytes = 1000, .buffer_bytes = buffer});
            const Source source = open_source(to);
            EXPECT_EQ(source.manifest.entries.size(), 66u);
            EXPECT_GT(source.manifest.files.size(), 3u);
            for (const auto& entry : source.manifest.entries) {
              SCOPED_TRACE(entry.name + " " + entry.role);
              const at::ScalarType dtype = scalar_type(entry.dtype);
              const at::Tensor whole = at::empty(entry.shape, dtype);
              read_box(source, entry, whole_box(entry.shape), whole);
              EXPECT_TRUE(at::equal(whole, expected(entry.name, entry.role, entry.shape, dtype)));
            }
            auto fresh = flat_state(specs, roles, rank, 3, false);
            load_full(*all, to, fresh, buffer);
            EXPECT_EQ(differences(fresh), "");
          }
        },
        {.transport = transport});
}

TEST(FullState, ConvertsAndFillsOtherLayouts) {
  const std::string folder = temporary_folder();
  const auto specs = small_model();
  run_ranks(2, [&](World& world) {
    const auto all = group_of_all_ranks(world);
    const auto held = flat_state(specs, {{"parameter", at::kFloat, true}}, all->rank(), 2, true);
    save_full(*all, held, folder + "/half", {.dtype = Dtype::bfloat16, .config = "{\"a\": 1}\n"});
    EXPECT_TRUE(fs::exists(folder + "/half/config.json"));
    for (const auto& entry : open_source(folder + "/half").manifest.entries)
      EXPECT_EQ(entry.dtype, Dtype::bfloat16);
    // Every rank whole, in another type: 250 is exact in bfloat16.
    auto fresh = flat_state(specs, {{"parameter", at::kDouble, false}}, all->rank(), 2, false);
    load_full(*all, folder + "/half", fresh, 64);
    EXPECT_EQ(differences(fresh), "");
    // From a sharded checkpoint too.
    save_checkpoint(*all, folder + "/checkpoints", {.step = 1}, held, 0);
    fresh = flat_state(specs, {{"parameter", at::kFloat, false}}, all->rank(), 2, false);
    load_full(*all, folder + "/checkpoints", fresh, 64);
    EXPECT_EQ(differences(fresh), "");
  });
}

TEST(FullState, ErrorsOfOneRankAreThoseOfAllAndLeaveNothing) {
  const std::string folder = temporary_folder();
  run_ranks(2, [&](World& world) {
    const auto all = group_of_all_ranks(world);
    const auto held = flat_state(small_model(), roles, all->rank(), 2, true);
    const auto refusal = [&](const std::function<void()>& work) {
      try {
        work();
        return std::string("nothing was thrown");
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint);
        return std::string(error.what());
      }
    };
    const auto contains = [](const std::string& sentence, const std::string& fragment) {
      EXPECT_NE(sentence.find(fragment), std::string::npos) << sentence;
    };
    int writes = 0;  // the disk of rank 0 fails in the middle
    if (all->rank() == 0)
      set_disk_hook([&](std::string_view operation, const std::string& path) {
        if (operation == "write" && ++writes == 9) fail(ExitCode::checkpoint, "disk full: ", path);
      });
    contains(refusal([&] { save_full(*all, held, folder + "/out", {.buffer_bytes = 100}); }),
             "rank 0: disk full");
    set_disk_hook({});
    all->barrier({"test", "test"});
    EXPECT_TRUE(fs::is_empty(folder));
    all->barrier({"test", "test"});
    save_full(*all, held, folder + "/out");
    contains(refusal([&] { save_full(*all, held, folder + "/out"); }), "exists already");
    auto other = held;
    other.pop_back();
    contains(refusal([&] { load_full(*all, folder + "/out", other); }), "nobody asked for step");
    contains(refusal([&] { load_full(*all, folder + "/none", held); }), "/none");
  });
}

// The sharded checkpoint comes first: what goes wrong later costs nothing.
TEST(FullState, ARankThatIsTooSlowIsNamedAndTheShardedCheckpointIsThere) {
  const std::string folder = temporary_folder();
  run_ranks(2,
            [&](World& world) {
              const auto all = group_of_all_ranks(world);
              const auto specs = small_model();
              const auto held = flat_state(specs, roles, all->rank(), 2, true);
              save_checkpoint(*all, folder, {.step = 7}, held, 0);
              bool lost = false;
              try {
                if (all->rank() == 1) usleep(2'000'000);
                save_full(*all, held, folder + "/full", {.buffer_bytes = 100});
              } catch (const Error& error) {
                lost = error.code() == ExitCode::peer_lost;
                if (all->rank() == 0)
                  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos)
                      << error.what();
              }
              EXPECT_TRUE(lost);
              EXPECT_FALSE(fs::exists(folder + "/full"));
              const auto alone = single_communicator("alone");
              auto fresh = flat_state(specs, roles, 0, 1, false);
              EXPECT_EQ(load_checkpoint(*alone, folder + "/step-7", fresh).step, 7);
              EXPECT_EQ(differences(fresh), "");
            },
            {.call_deadline = std::chrono::milliseconds(700)});
}

// No rank ever holds the state, or one tensor of it; and ten exports hold no more than one.
TEST(FullState, MemoryIsThatOfTheBuffersHoweverLargeATensorAndHoweverOften) {
  const std::string folder = temporary_folder();
  constexpr int64_t rows = 4 << 10, columns = 1024;  // 16 MiB on each of 2 ranks
  constexpr int64_t buffer = 1 << 20;
  run_ranks(2, [&](World& world) {
    const auto all = group_of_all_ranks(world);
    count_memory();
    const at::Tensor shard = at::full({rows, columns}, 1.0f + float(all->rank()));
    StateEntry entry{"w", "parameter", Dtype::float32, {2 * rows, columns}, {}};
    entry.parts.push_back({{{all->rank() * rows, 0}, {rows, columns}}, shard});
    const std::vector<StateEntry> entries = {entry};
    const auto once = [&](int number) {
      const std::string to = text(folder, "/", number);
      save_full(*all, entries, to, {.buffer_bytes = buffer});
      if (number == 0) load_full(*all, to, entries, buffer);
      all->barrier({"test", "test"});
      if (all->rank() == 0) fs::remove_all(to);
      all->barrier({"test", "test"});
    };
    reset_peak_memory();
    reset_peak_resident();
    const int64_t tensors = tensor_memory().current;
    [[maybe_unused]] const int64_t before = resident("VmRSS");
    once(0);
    EXPECT_LT(tensor_memory().peak - tensors, 2 * buffer + (9 << 20));  // reading stages 8 MiB
    [[maybe_unused]] const int64_t after = resident("VmRSS"), peak = resident("VmHWM");
    for (int number = 1; number <= 10; ++number) once(number);
#ifndef PHALANX_SANITIZED  // which keeps what is freed
    EXPECT_LT(peak - before, 24 << 20);
    EXPECT_LT(resident("VmHWM") - before, 24 << 20);
    EXPECT_LT(resident("VmRSS") - after, 4 << 20);
#endif
    EXPECT_EQ(shard[0][0].item<float>(), 1.0f + float(all->rank()));
  });
}

}  // namespace
}  // namespace phalanx::testing
