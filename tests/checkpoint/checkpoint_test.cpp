#include "phalanx/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/verify.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

using testing::expect_contains;

namespace fs = std::filesystem;
using testing::flat_state;
using testing::ThreadRanks;

const std::vector<testing::Role> roles = {
    {"parameter", at::kFloat, true}, {"exp_avg", at::kDouble, true}, {"step", at::kLong, false}};

std::vector<std::string> save(const std::string& folder, const RunState& run, int ranks,
                              int keep = 0) {
  return ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), ranks, true,
                                  static_cast<int>(run.step));
    save_checkpoint(world, folder, run, state, keep);
  });
}

void save_ok(const std::string& folder, const RunState& run, int ranks, int keep = 0) {
  for (const auto& error : save(folder, run, ranks, keep)) ASSERT_EQ(error, "");
}

// What loading `path` on `ranks` ranks says; every rank must say the same.
std::string load_error(const std::string& path, int ranks = 2, bool hashes = false, int salt = -1) {
  const auto errors = ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), ranks, false);
    const RunState run = load_checkpoint(world, path, state, {.verify_hashes = hashes});
    const std::string wrong =
        testing::differences(state, salt < 0 ? static_cast<int>(run.step) : salt);
    require(wrong.empty(), ExitCode::checkpoint, wrong);
  });
  for (const auto& error : errors) EXPECT_EQ(error, errors[0]) << "ranks disagree";
  return errors[0];
}

std::string newest(const std::string& folder, std::string* error = nullptr) {
  std::string found = "none";
  const auto errors = ThreadRanks::run(3, [&](Communicator& world) {
    const auto path = newest_checkpoint(world, folder);
    if (world.rank() == 1 && path) found = fs::path(*path).filename();
  });
  EXPECT_EQ(errors[0], errors[2]);
  if (error) *error = errors[1];
  return found;
}

std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename());
  std::sort(found.begin(), found.end());
  return found;
}

void flip(const std::string& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char old = static_cast<char>(file.get());
  file.seekp(at).put(static_cast<char>(old ^ 0x10));
}

std::string a_state_file(const std::string& path) {
  for (const auto& name : names(path))
    if (name.ends_with(".safetensors")) return path + "/" + name;
  return "";
}

TEST(Checkpoint, GivesBackTheRunAndTheSameBits) {
  const std::string folder = testing::temporary_folder() + "/checkpoints";
  RunState run{
      .step = 7, .consumed_samples = (int64_t{1} << 53) + 1, .config = "[model]\nx = \"\\\"\"\n"};
  run.versions = {{"phalanx", "0.1"}};
  run.values = {{"loss_scale", 65536.0},
                {"big", int64_t{-9007199254740993}},
                {"tenth", 0.1},
                {"text", std::string("a b")}};
  save_ok(folder, run, 2);
  EXPECT_EQ(names(folder), (std::vector<std::string>{"latest", "step-7"}));
  EXPECT_EQ(read_file(folder + "/latest", ExitCode::checkpoint), "step-7\n");
  for (int ranks : {1, 2, 3}) EXPECT_EQ(load_error(folder + "/step-7", ranks, true), "");
  const RunState back = read_manifest(folder + "/step-7").run;
  EXPECT_EQ(back.consumed_samples, run.consumed_samples);
  EXPECT_EQ(back.config, run.config);
  EXPECT_EQ(back.versions, run.versions);
  EXPECT_EQ(back.values, run.values);
  // The bits of floats, not only their values: NaN, -0, denormals.
  const at::Tensor odd = at::tensor({std::nan("1"), -0.0, 5e-324, 1e308}, at::kDouble);
  const auto errors = ThreadRanks::run(1, [&](Communicator& world) {
    at::Tensor copy = at::zeros_like(odd);
    save_checkpoint(world, folder, {.step = 8}, std::vector{whole_entry("odd", "parameter", odd)},
                    0);
    load_checkpoint(world, folder + "/step-8", std::vector{whole_entry("odd", "parameter", copy)});
    require(at::equal(copy.view(at::kLong), odd.view(at::kLong)), ExitCode::checkpoint,
            "bits differ");
    run.values["loss"] = std::nan("");
    save_checkpoint(world, folder, run, {}, 0);
  });
  expect_contains(errors[0], {"loss", "finite"});
}

TEST(Checkpoint, StrictErrorsNameEverythingAtOnceOnAllRanks) {
  const std::string folder = testing::temporary_folder();
  save_ok(folder, {.step = 1}, 2);
  const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
    auto specs = testing::small_model();
    specs[0] = whole_parameter("wte.weight", "wte.weight", {33, 8}, Kind::weight, {});  // shape
    specs[1].pieces[0].name = "norm.renamed";  // missing, and the old name is unexpected
    auto other = roles;
    other[1].dtype = at::kLong;               // exp_avg saved as float64
    other[2].name = "exp_avg_sq";             // a whole role is missing
    if (world.rank() == 1) specs.pop_back();  // held by rank 0 alone
    const auto state = flat_state(specs, other, world.rank(), 2, false);
    load_checkpoint(world, folder + "/step-1", state);
  });
  EXPECT_EQ(errors[0], errors[1]);
  expect_contains(errors[0],
                  {"step-1", "lacks", "exp_avg of norm.renamed", "parameter of norm.renamed",
                   "every exp_avg_sq", "nobody asked for", "parameter of norm.bias", "every step",
                   "wte.weight (parameter) is [33, 7], wanted [33, 8]",
                   "exp_avg is float64, wanted int64, of cube, nothing", "ckpt inspect"});
  const auto contradicting = ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = flat_state({whole_parameter("w", "w", {4 + world.rank()}, Kind::weight, {})},
                                  {roles[0]}, 0, 1, false);
    load_checkpoint(world, folder + "/step-1", state);
  });
  EXPECT_EQ(contradicting[0], contradicting[1]);
  expect_contains(contradicting[0], {"different w (parameter)", "[4]", "[5]"});
  // One role alone, as generation loads it.
  const auto chosen = ThreadRanks::run(1, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), {roles[0]}, 0, 1, false);
    load_checkpoint(world, folder + "/step-1", state, {.roles = {"parameter"}});
    require(testing::differences(state, 1).empty(), ExitCode::checkpoint, "differs");
  });
  EXPECT_EQ(chosen[0], "");
}

TEST(Checkpoint, KeepsTheNewestByTimeAndReplacesAStep) {
  const std::string folder = testing::temporary_folder();
  for (int64_t step : {500, 600, 700}) save_ok(folder, {.step = step}, 2, 3);
  save_ok(folder, {.step = 100}, 2, 3);  // a new run in an old folder
  EXPECT_EQ(names(folder),
            (std::vector<std::string>{"latest", "step-100", "step-600", "step-700"}));
  EXPECT_EQ(newest(folder), "step-100");
  save_ok(folder, {.step = 600, .consumed_samples = 42}, 1, 3);
  EXPECT_EQ(read_manifest(folder + "/step-600").run.consumed_samples, 42);
  EXPECT_EQ(newest(folder), "step-600");
  EXPECT_EQ(load_error(folder + "/step-600"), "");
  for (int64_t step = 1; step <= 3; ++step) {
    save_ok(folder, {.step = step}, 1, 1);
    EXPECT_EQ(names(folder), (std::vector<std::string>{"latest", "step-" + std::to_string(step)}));
  }
}

TEST(Checkpoint, PassesOverBrokenOnesAndNamesThem) {
  const std::string folder = testing::temporary_folder();
  EXPECT_EQ(newest(folder + "/none"), "none");
  EXPECT_EQ(newest(folder), "none");
  fs::create_directory(folder + "/.tmp-step-1-x");
  fs::create_directory(folder + "/step-notes");
  EXPECT_EQ(newest(folder), "none");
  for (int64_t step : {1, 2, 3, 4, 5}) save_ok(folder, {.step = step}, 2);
  // `latest` only helps people: a wrong one changes nothing.
  for (const std::string text : {"", "step-99\r\n", "step-1"}) {
    std::ofstream(folder + "/latest") << text;
    EXPECT_EQ(newest(folder), "step-5");
  }
  fs::remove(folder + "/latest");
  const std::string cut = a_state_file(folder + "/step-5");
  fs::resize_file(cut, fs::file_size(cut) - 1);
  EXPECT_EQ(newest(folder), "step-4");
  expect_contains(load_error(folder + "/step-5"), {cut, "bytes, the manifest says"});
  fs::remove(a_state_file(folder + "/step-4"));
  EXPECT_EQ(newest(folder), "step-3");
  expect_contains(load_error(folder + "/step-4"), {"state-00000", "No such file"});
  fs::resize_file(folder + "/step-3/manifest.json", 100);
  EXPECT_EQ(newest(folder), "step-2");
  expect_contains(load_error(folder + "/step-3"), {"step-3/manifest.json", "damaged"});
  flip(folder + "/step-2/manifest.json", 300);
  EXPECT_EQ(newest(folder), "step-1");
  fs::remove(folder + "/step-1/manifest.json");
  std::string error;
  newest(folder, &error);
  for (int step = 1; step <= 5; ++step)
    expect_contains(error, {"step-" + std::to_string(step) + ":"});
  expect_contains(error, {"no checkpoint in", "train.resume"});
  expect_contains(load_error(folder + "/step-1"), {"no manifest.json"});
  expect_contains(load_error(folder + "/step-77"), {"there is no checkpoint", "step-77"});
  save_ok(folder, {.step = 6}, 2, 1);
  EXPECT_EQ(newest(folder), "step-6");
}

TEST(Checkpoint, EveryFlippedByteIsFound) {
  const std::string folder = testing::temporary_folder();
  save_ok(folder, {.step = 1}, 2);
  const std::string path = folder + "/step-1";
  const Manifest manifest = read_manifest(path);
  EXPECT_TRUE(content_defects(*open_storage(path), "", manifest).empty());
  for (const auto& [name, bytes] : manifest.files)
    for (int64_t at = 0; at < bytes; at += 1 + bytes / 97) {
      flip(path + "/" + name, at);
      EXPECT_FALSE(content_defects(*open_storage(path), "", manifest).empty())
          << name << " byte " << at;
      flip(path + "/" + name, at);
    }
  const std::string file = a_state_file(path);
  flip(file, static_cast<int64_t>(fs::file_size(file)) - 1);
  for (int ranks : {1, 2, 3})
    expect_contains(load_error(path, ranks, true),
                    {file, "damaged", "does not have the manifest's hash"});
}

// A manifest that lies, with a right hash: everything is checked before it is believed.
TEST(Manifest, ThatLiesIsRefused) {
  const std::string folder = testing::temporary_folder();
  save_ok(folder, {.step = 1}, 2);
  const std::string path = folder + "/step-1/manifest.json",
                    text = read_file(path, ExitCode::checkpoint);
  const auto refused = [&](const std::function<void(nlohmann::json&)>& change,
                           const std::string& fragment) {
    auto fields = nlohmann::json::parse(text);
    change(fields);
    try {
      parse_manifest(fields.dump(), path);
      ADD_FAILURE() << "accepted; wanted " << fragment;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
      expect_contains(error.what(), {path, fragment});
    }
  };
  EXPECT_EQ(parse_manifest(text, path).entries.size(), 33u);
  const auto tensor = [](nlohmann::json& fields, const std::string& name) -> nlohmann::json& {
    for (auto& entry : fields["tensors"])
      if (entry["name"] == name) return entry;
    throw std::runtime_error("no tensor " + name);
  };
  refused([](auto& f) { f["format_version"] = 2; }, "format version 2");
  refused([](auto& f) { f["format"] = "something"; }, "its format is \"something\"");
  refused([](auto& f) { f.erase("run"); }, "run");
  refused([](auto& f) { f["files"]["../../etc/passwd"] = 1; }, "no name of a file");
  refused([](auto& f) { f["files"][".."] = 1; }, "no name of a file");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["file"] = "/etc/passwd"; },
          "is not in file /etc/passwd");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["file_offset"] = int64_t{1} << 62; },
          "is not in file");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["file_offset"] = -8; }, "is not in file");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["bytes"] = 1; }, "is not in file");
  refused([&](auto& f) { tensor(f, "cube")["parts"].erase(0); }, "are missing");
  refused(
      [&](auto& f) {
        auto& p = tensor(f, "cube")["parts"];
        p.push_back(p[0]);
      },
      "overlap");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["offset"][0] = -1; }, "outside");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["size"] = {1}; }, "outside");
  refused([&](auto& f) { tensor(f, "cube")["shape"] = {int64_t{1} << 62, 8}; }, "impossible shape");
  refused([&](auto& f) { tensor(f, "cube")["dtype"] = "complex"; }, "complex");
  refused([&](auto& f) { tensor(f, "cube")["parts"][0]["xxh3_128"] = "12"; }, "no hash");
  refused([&](auto& f) { f["tensors"].push_back(tensor(f, "cube")); }, "listed twice");
}

}  // namespace
}  // namespace phalanx
