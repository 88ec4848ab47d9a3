// What loading allows and converts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <set>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

using testing::expect_contains;

namespace fs = std::filesystem;
using testing::flat_state;
using testing::Role;
using testing::ThreadRanks;

void expect_none(const std::vector<std::string>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

std::string save(const std::string& folder, int64_t step, const std::vector<Role>& roles,
                 const std::vector<ParameterSpec>& specs = testing::small_model()) {
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    save_checkpoint(world, folder, {.step = step},
                    flat_state(specs, roles, world.rank(), 2, true, static_cast<int>(step)), 0);
  }));
  return folder + "/step-" + std::to_string(step);
}

ParameterSpec plain(const std::string& name, std::vector<int64_t> shape) {
  return whole_parameter(name, name, std::move(shape), Kind::weight, {});
}

// The entries of a tensor that do not hold 254, which flat_state() puts there.
bool untouched(const StateEntry& entry) {
  for (const auto& part : entry.parts)
    if (!part.local.eq(254).all().item<bool>()) return false;
  return true;
}

// A layer more and a layer less, with their optimizer state: as the patterns say, all or nothing.
TEST(Load, PatternsAllowMissingAndUnexpectedTensors) {
  const std::string folder = testing::temporary_folder();
  const std::vector<Role> roles = {{"parameter", at::kFloat, true}, {"exp_avg", at::kFloat, true}};
  const std::string path =
      save(folder, 1, roles, {plain("h.0.w", {4, 3}), plain("h.0.b", {3}), plain("h.1.w", {4, 3})});
  const auto load = [&](const LoadOptions& options) {
    const std::vector<ParameterSpec> wanted = {plain("h.0.w", {4, 3}), plain("h.0.b", {3}),
                                               plain("head.w", {5, 2})};
    const auto errors = ThreadRanks::run(3, [&](Communicator& world) {
      const auto state = flat_state(wanted, roles, world.rank(), 3, false);
      load_checkpoint(world, path, state, options);
      for (const auto& entry : state)
        if (entry.name == "head.w")
          require(untouched(entry), ExitCode::checkpoint, "head.w was touched");
        else
          require(testing::differences({entry}, 1).empty(), ExitCode::checkpoint, "differs");
    });
    for (const auto& error : errors) EXPECT_EQ(error, errors[0]);
    return errors[0];
  };
  EXPECT_EQ(load({.allow_missing = {"head.*"}, .allow_unexpected = {"h.1.*"}}), "");
  EXPECT_EQ(load({.allow_missing = {"head.w", "head.w:exp_*"}, .allow_unexpected = {"*"}}), "");
  EXPECT_EQ(load({.allow_missing = {"head.?", "*:exp_avg"}, .allow_unexpected = {"h.[1-9].*"}}),
            "");
  const std::string strict = load({});
  expect_contains(strict, {"it lacks exp_avg of head.w; parameter of head.w", "nobody asked for",
                           "exp_avg of h.1.w; parameter of h.1.w", "allow_missing"});
  const std::string role = load({.allow_missing = {"head.w"}, .allow_unexpected = {"h.1.w:*"}});
  expect_contains(role, {"it lacks exp_avg of head.w;", "nobody asked for parameter of h.1.w"});
  EXPECT_EQ(role.find("parameter of head.w"), std::string::npos) << role;
  expect_contains(load({.allow_missing = {"head"}, .allow_unexpected = {"h.1.*"}}),
                  {"it lacks exp_avg of head.w; parameter of head.w"});
  // What is there must still fit.
  const auto other = ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = flat_state({plain("h.0.w", {4, 4})}, roles, world.rank(), 2, false);
    load_checkpoint(world, path, state, {.allow_missing = {"*"}, .allow_unexpected = {"*"}});
  });
  expect_contains(other[0], {"h.0.w (parameter) is [4, 3], wanted [4, 4]"});
  // Ranks with options of their own: one message, nobody is left waiting.
  const auto torn = ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = flat_state({plain("new", {4})}, roles, world.rank(), 2, false);
    LoadOptions options{.allow_unexpected = {"*"}};
    if (world.rank() == 0) options.allow_missing = {"*"};
    load_checkpoint(world, path, state, options);
  });
  EXPECT_EQ(torn[0], torn[1]);
  expect_contains(torn[0], {"rank 1: ", "it lacks"});
}

// A role that nothing has: to load nothing would look like success.
TEST(Load, RefusesARoleThatNoTensorHas) {
  const std::string folder = testing::temporary_folder();
  const std::vector<Role> roles = {{"parameter", at::kFloat, true}, {"exp_avg", at::kFloat, true}};
  const std::string path = save(folder, 1, roles);
  for (const std::set<std::string>& chosen :
       {std::set<std::string>{"parameters"}, std::set<std::string>{"parameter", "exp_avg_sq"}}) {
    const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
      load_checkpoint(world, path,
                      flat_state(testing::small_model(), roles, world.rank(), 2, false),
                      {.roles = chosen});
    });
    EXPECT_EQ(errors[0], errors[1]);
    expect_contains(errors[0], {"has the role " + *chosen.begin(), "they have exp_avg, parameter"});
  }
}

TEST(Load, ATensorOfATypeThatIsNotReadIsNamed) {
  const at::Tensor phase = at::ones({2}, at::kComplexFloat);
  try {
    whole_entry("rope.phase", "buffer", phase);
    ADD_FAILURE() << "complex numbers have no name of ours";
  } catch (const Error& error) {
    expect_contains(error.what(),
                    {"rope.phase (buffer): tensors of type", "use one of float64", "bool"});
  }
}

// Its memory holds the opposite of its values.
TEST(Load, AViewWithTurnedSignsIsNeitherSavedNorLoaded) {
  const std::string folder = testing::temporary_folder();
  const at::Tensor turned = at::_neg_view(at::ones({2}));
  const std::vector<StateEntry> state = {whole_entry("phase", "buffer", turned)},
                                resolved = {whole_entry("phase", "buffer", turned.resolve_neg())};
  const auto errors = ThreadRanks::run(
      1, [&](Communicator& world) { save_checkpoint(world, folder, {.step = 1}, state, 0); });
  expect_contains(errors[0], {"phase (buffer)", "turned signs", "resolve_neg()"});
  expect_none(ThreadRanks::run(
      1, [&](Communicator& world) { save_checkpoint(world, folder, {.step = 1}, resolved, 0); }));
  const auto loading = ThreadRanks::run(
      1, [&](Communicator& world) { load_checkpoint(world, folder + "/step-1", state); });
  expect_contains(loading[0], {"phase (buffer)", "turned signs"});
}

TEST(Load, BooleansComeBackOnAnyNumberOfRanks) {
  const std::string folder = testing::temporary_folder();
  const ParameterSpec spec = plain("mask", {7, 3});
  const at::Tensor values = at::arange(21, at::kLong).remainder(3).eq(1).view({7, 3});
  const auto share = [&](int rank, int ranks, const at::Tensor& whole) {
    const int64_t begin = 21 * rank / ranks, end = 21 * (rank + 1) / ranks;
    return shard_entries(spec, begin, end, whole.view(-1).slice(0, begin, end).clone(), "buffer");
  };
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    save_checkpoint(world, folder, {.step = 1}, share(world.rank(), 2, values), 0);
  }));
  expect_none(ThreadRanks::run(3, [&](Communicator& world) {
    const auto mine = share(world.rank(), 3, values.logical_not());
    load_checkpoint(world, folder + "/step-1", mine, {.verify_hashes = true});
    for (const auto& part : mine[0].parts)
      require(at::equal(part.local, view_of(values, whole_box({7, 3}), part.box)),
              ExitCode::checkpoint, "another mask");
  }));
  const auto errors = ThreadRanks::run(1, [&](Communicator& world) {
    load_checkpoint(world, folder + "/step-1",
                    std::vector{whole_entry("mask", "buffer", at::ones({7, 3}))});
  });
  expect_contains(errors[0], {"buffer is bool, wanted float32"});
}

// Other programs' files list buffers among the parameters.
TEST(Load, FindsABufferAmongTheParameters) {
  const std::string folder = testing::temporary_folder();
  const auto state = [](const std::string& role, int value) {
    return std::vector{whole_entry("norm.weight", "parameter", at::full({3}, value, at::kFloat)),
                       whole_entry("norm.mean", role, at::full({3}, value, at::kFloat))};
  };
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    const std::string path = save_checkpoint(world, folder, {.step = 1}, state("parameter", 7), 0);
    const auto wanted = state("buffer", 0);
    load_checkpoint(world, path, wanted);
    for (const auto& entry : wanted)
      require(entry.parts[0].local.eq(7).all().item<bool>(), ExitCode::checkpoint, entry.name);
    const auto weights = state("buffer", 0);
    load_checkpoint(world, path, weights, {.roles = {"parameter"}});
    require(weights[0].parts[0].local.eq(7).all().item<bool>() &&
                weights[1].parts[0].local.eq(0).all().item<bool>(),
            ExitCode::checkpoint, "roles are not what was asked for");
  }));
}

// A rank that holds nothing of the buffer does not list it.
TEST(Load, FindsABufferAmongTheParametersThatOneRankListsOnly) {
  const std::string folder = testing::temporary_folder();
  const auto weight = whole_entry("norm.weight", "parameter", at::full({3}, 7, at::kFloat));
  expect_none(ThreadRanks::run(1, [&](Communicator& world) {
    const auto mean = whole_entry("norm.mean", "parameter", at::full({3}, 7, at::kFloat));
    save_checkpoint(world, folder, {.step = 1}, std::vector{weight, mean}, 0);
  }));
  for (const auto& roles : {std::set<std::string>{}, std::set<std::string>{"parameter"}})
    expect_none(ThreadRanks::run(2, [&](Communicator& world) {
      const at::Tensor mean = at::zeros({3});
      std::vector wanted{whole_entry("norm.weight", "parameter", at::zeros({3}))};
      if (world.rank() == 1) wanted.push_back(whole_entry("norm.mean", "buffer", mean));
      load_checkpoint(world, folder + "/step-1", wanted, {.roles = roles});
      require(wanted[0].parts[0].local.eq(7).all().item<bool>(), ExitCode::checkpoint, "weight");
      require(mean.eq(world.rank() == 1 && roles.empty() ? 7 : 0).all().item<bool>(),
              ExitCode::checkpoint, "mean");
    }));
}

// What one rank reads or deletes may take longer than a collective.
TEST(Load, RanksWaitForADiskAsLongAsItTakes) {
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  const std::string path = save(folder, 1, {{"parameter", at::kFloat, true}});
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    const auto& rank = dynamic_cast<ThreadRanks::Rank&>(world);
    Checkpointer checkpointer(world, folder, {.local = local});
    const auto state = flat_state(testing::small_model(), {{"parameter", at::kFloat, true}},
                                  world.rank(), 2, false);
    load_checkpoint(world, path, state, {.verify_hashes = true});
    newest_checkpoint(world, folder, local);
    checkpointer.save({.step = 2}, state);
    for (const char* purpose :
         {"folder", "local folder", "manifest", "verify", "read", "newest", "begin"})
      EXPECT_EQ(rank.deadline_of(purpose), disk_deadline) << purpose;
  }));
}

TEST(Load, ConvertsFloatingTypesAndRefusesOthers) {
  const std::string folder = testing::temporary_folder();
  const at::ScalarType floats[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
  int64_t step = 0;
  for (at::ScalarType from : floats) {
    const std::string path = save(folder, ++step, {{"parameter", from, true}});
    for (at::ScalarType to : floats) {
      SCOPED_TRACE(text(from, " to ", to));
      expect_none(ThreadRanks::run(3, [&](Communicator& world) {
        const auto state =
            flat_state(testing::small_model(), {{"parameter", to, true}}, world.rank(), 3, false);
        load_checkpoint(world, path, state);
        const std::string wrong = testing::differences(state, static_cast<int>(step));
        require(wrong.empty(), ExitCode::checkpoint, wrong);
      }));
    }
  }
  // Rounded to nearest even, as LibTorch does; said once.
  const at::Tensor third = at::full({7}, 1.0 / 3, at::kDouble);
  ::testing::internal::CaptureStderr();
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    save_checkpoint(world, folder, {.step = 90}, std::vector{whole_entry("x", "parameter", third)},
                    0);
    const at::Tensor low = at::zeros({7}, at::kBFloat16);
    load_checkpoint(world, folder + "/step-90", std::vector{whole_entry("x", "parameter", low)});
    require(low.equal(third.to(at::kBFloat16)), ExitCode::checkpoint, "rounded otherwise");
  }));
  const std::string log = ::testing::internal::GetCapturedStderr();
  expect_contains(log, {"step-90", "parameter from float64 to bfloat16 is converted (1 tensor)"});
  EXPECT_EQ(log.find("converted"), log.rfind("converted"));
  const std::pair<at::ScalarType, at::ScalarType> refused[] = {{at::kLong, at::kInt},
                                                               {at::kInt, at::kFloat},
                                                               {at::kFloat, at::kLong},
                                                               {at::kByte, at::kShort}};
  for (const auto& [from, to] : refused) {
    const std::string path = save(folder, ++step, {{"parameter", from, true}});
    const auto errors = ThreadRanks::run(2, [&, to = to](Communicator& world) {
      load_checkpoint(
          world, path,
          flat_state(testing::small_model(), {{"parameter", to, true}}, world.rank(), 2, false));
    });
    EXPECT_EQ(errors[0], errors[1]);
    expect_contains(errors[0], {"parameter is ", ", wanted ", "of cube, norm.bias"});
  }
}

// Rank 0 removes what it wrote to see whether all ranks share the folder: its trouble is
// everyone's, and never hides another's.
TEST(Load, TroubleWithTheProbeOfAFolderIsToldToAll) {
  for (const bool other : {false, true}) {
    const std::string folder = testing::temporary_folder();
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      const std::string name = fs::path(path).filename();
      if (!name.starts_with(".tmp-probe-")) return;
      if (other && operation == "create" && name.ends_with("-1"))
        fail(ExitCode::checkpoint, "no place");
      if (operation == "remove" && std::count(name.begin(), name.end(), '-') == 2)
        throw SystemError(ExitCode::checkpoint, EIO, "cannot remove");
    });
    const auto errors =
        ThreadRanks::run(2, [&](Communicator& world) { prepare_checkpoints(world, folder); });
    set_disk_hook(nullptr);
    for (const auto& error : errors)
      EXPECT_EQ(error, other ? "rank 1: no place" : "rank 0: cannot remove");
    expect_none(
        ThreadRanks::run(2, [&](Communicator& world) { prepare_checkpoints(world, folder); }));
    EXPECT_TRUE(fs::is_empty(folder));
  }
}

// Hosts without a common file system: copies of a checkpoint load; a save that would scatter one is
// refused, and names the rank.
TEST(Load, FoldersOfTheirOwnPerHost) {
  const std::string folder = testing::temporary_folder();
  const std::vector<Role> roles = {{"parameter", at::kFloat, true}};
  save(folder + "/host0", 5, roles);
  fs::copy(folder + "/host0", folder + "/host1", fs::copy_options::recursive);
  const auto here = [&](Communicator& world) { return text(folder, "/host", world.rank()); };
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), 2, false);
    load_checkpoint(world, here(world) + "/step-5", state, {.verify_hashes = true});
    require(testing::differences(state, 5).empty(), ExitCode::checkpoint, "differs");
  }));
  fs::remove_all(folder + "/host1");
  fs::create_directory(folder + "/host1");
  const auto missing = ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), 2, false);
    load_checkpoint(world, here(world) + "/step-5", state);
  });
  EXPECT_EQ(missing[0], missing[1]);
  expect_contains(missing[0], {"rank 1: ", "host1/step-5/state-0000", "No such file"});
  const auto scattered =
      ThreadRanks::run(2, [&](Communicator& world) { prepare_checkpoints(world, here(world)); });
  EXPECT_EQ(scattered[0], scattered[1]);
  expect_contains(scattered[0], {"rank 1: ", "host1", "rank 0", "one folder"});
}

}  // namespace
}  // namespace phalanx
