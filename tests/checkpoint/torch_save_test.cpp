// Files of torch.save, written by PyTorch itself.
#include "phalanx/checkpoint/torch_save.h"

#include <filesystem>
#include <random>

#include "phalanx/checkpoint/storage.h"
#include "phalanx/checkpoint/torch_names.h"
#include "phalanx/checkpoint/weights.h"
#include "tests/checkpoint/exported_model.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/checkpoint/torch_oracle.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

Source open(const std::string& folder, const std::string& name) {
  return open_torch_save(open_storage(folder), name, folder + "/" + name);
}

void write(const std::string& path, const std::string& bytes) {
  OutputFile out(path, ExitCode::checkpoint);
  out.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  out.finish();
}

// Every cut, and flips of what is not data: an Error or tensors that can be read, nothing else.
void damage(const std::string& folder, const std::string& name) {
  const std::string good = read_file(folder + "/" + name, ExitCode::checkpoint);
  const auto survives = [&](const std::string& bytes) {
    write(folder + "/damaged.pt", bytes);
    return testing::error_of([&] {
      const Source source = open(folder, "damaged.pt");
      for (const auto& entry : source.manifest.entries)
        if (element_count(entry.shape) < 1000) testing::read_whole(source, entry);
    });
  };
  for (size_t length = 0; length < good.size(); length += length < 200 ? 1 : 37)
    EXPECT_NE(survives(good.substr(0, length)), "") << "cut at " << length;
  for (size_t length = good.size() - 200; length < good.size(); ++length)
    EXPECT_NE(survives(good.substr(0, length)), "") << "cut at " << length;
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    refused += !survives(bad).empty();
  }
  EXPECT_GT(refused, 100) << "checksum of the pickle, signatures, names";
}

TEST(TorchSave, NamesAreThoseBelowTheCallersKeys) {
  using Paths = std::vector<std::vector<std::string>>;
  const auto named = [](const Paths& paths) {
    std::vector<std::string> found;
    for (const auto& [name, role] : name_torch_tensors(paths).names)
      found.push_back(role == "parameter" ? name : text(name, ":", role));
    return join(found, " ");
  };
  EXPECT_EQ(named({{"a.w"}, {"model.w"}}), "a.w model.w") << "a state_dict at the top";
  EXPECT_EQ(named({{"model.a.w"}, {"model.b"}}), "model.a.w model.b") << "may be their own";
  EXPECT_EQ(named({{"app", "model", "a.w"}, {"app", "opt", "state", "a.w", "exp_avg"}}),
            "a.w a.w:exp_avg");
  EXPECT_EQ(named({{"m.a.w"}, {"m.b"}, {"x"}, {"optim.state.a.w.step"}, {"optim.state.b.step"}}),
            "a.w b x:other a.w:step b:step");
  EXPECT_EQ(named({{"m.a"}, {"n.a"}, {"state.a.momentum_buffer"}}), "m.a n.a a:momentum")
      << "two would do";
  EXPECT_EQ(named({{"model", "module.a"}, {"model", "module.b"}, {"ema", "module.a"}}),
            "a b ema.module.a:other");
  EXPECT_EQ(named({{"module.a"}, {"b"}}), "module.a b") << "not before all";
  EXPECT_EQ(named({{"_fsdp_wrapped_module.a._checkpoint_wrapped_module.w"}}), "a.w");
  EXPECT_EQ(named({{"generator", "w"}, {"judge", "w"}}), "generator.w judge.w");
  EXPECT_EQ(named({{"state_dict", "w"}, {"optimizer_states", "0", "state", "3", "exp_avg"}}),
            "w :exp_avg")
      << "numbers are left out";
  EXPECT_EQ(named({{"encoder.state.w"}, {"my.state.proj.step"}}),
            "encoder.state.w my.state.proj.step")
      << "no optimizer's";
}

TEST(TorchSave, IsReadAsPyTorchWroteItOrRefusedInASentence) {
  if (!testing::has_torch_in_python()) GTEST_SKIP() << "no torch in .venv: tools/install.sh test";
  const std::string folder = testing::temporary_folder();
  const auto [status, output] = testing::run_oracle("save", folder);
  ASSERT_EQ(status, 0) << output;
  for (const char* name : {"module_state", "nested", "wrapped", "masks", "one"}) {
    SCOPED_TRACE(name);
    testing::expect_source(open(folder, text(name, ".pt")), text(folder, "/", name, ".json"));
  }
  for (const int protocol : {3, 4, 5}) {
    SCOPED_TRACE(protocol);
    testing::expect_source(open(folder, text("protocol", protocol, ".pt")),
                           folder + "/nested.json");
  }
  const Source found = open_source(folder + "/module_state.pt");
  EXPECT_EQ(found.format, "torch");
  testing::expect_source(found, folder + "/module_state.json");

  // In the log once, however many ranks open the file.
  ::testing::internal::CaptureStderr();
  testing::ThreadRanks::run(2, [&](Communicator& world) {  // it does not fit
    load_weights(world, folder + "/nested.pt", testing::small_model_spec(), {});
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t told = log.find("not read, since they are no tensors");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("not read, since", told + 1), std::string::npos) << log;

  const std::vector<std::pair<std::string, std::string>> refused = {
      {"bad_module", "a whole pickled module (torch.nn.modules.container.Sequential)"},
      {"bad_complex", "phase has elements of torch.ComplexFloatStorage"},
      {"bad_neg", "signs is not as its bytes say (neg)"},
      {"bad_float8", "w8 has elements of torch.float8_e4m3fn"},
      {"bad_sparse", "sparse is made by torch._utils._rebuild_sparse_tensor"},
      {"bad_nothing", "holds no tensor, only"},
      {"bad_old", "had before PyTorch 1.6"},
      {"bad_script", "is a TorchScript archive"},
      {"bad_compressed", "is compressed"},
      {"bad_zip", "torch.save did not write it"},
      {"evil_system", "contains posix.system, which is not data"},
      {"evil_eval", "eval, which is not data"},
      {"evil_nested", "which is not data"}};
  for (const auto& [name, fragment] : refused) {
    SCOPED_TRACE(name);
    const std::string said = testing::error_of([&] { open(folder, name + ".pt"); });
    EXPECT_NE(said.find(fragment), std::string::npos) << said;
    EXPECT_NE(said.find(name + ".pt"), std::string::npos) << said;
  }
  EXPECT_FALSE(fs::exists(folder + "/marker")) << "nothing was run";
  damage(folder, "module_state.pt");
}

}  // namespace
}  // namespace phalanx
