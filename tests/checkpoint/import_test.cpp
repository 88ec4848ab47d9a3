// Weights that come back: `phalanx ckpt import`, and models that take them.
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "phalanx/checkpoint/export.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/stream.h"
#include "phalanx/checkpoint/weights.h"
#include "phalanx/checkpoint/zip.h"
#include "phalanx/train/saved_config.h"
#include "tests/checkpoint/call_command.h"
#include "tests/checkpoint/exported_model.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

TEST(Import, MakesACheckpointOfAFolderAndSaysWhatDoesNotFit) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  expect(ckpt({"export", path, folder + "/out", "--dtype", "bfloat16"}), 0, {});
  expect(ckpt({"import", folder + "/out", folder + "/in"}), 0, {"step-0", "28 tensors"});
  const Source source = open_source(folder + "/in");
  EXPECT_EQ(source.format, "phalanx");
  EXPECT_EQ(source.manifest.run.step, 0);
  EXPECT_EQ(saved_config(source).model.spec, model->spec());
  EXPECT_EQ(tensors_of(folder + "/in"), tensors_of(folder + "/out"));
  expect(ckpt({"verify", folder + "/in/step-0"}), 0, {"is whole"});
  expect(ckpt({"import", folder + "/out", folder + "/in"}), 6, {"step-0 exists already"});
  // Out again: every tensor's bytes, and the config.
  expect(ckpt({"export", folder + "/in", folder + "/again"}), 0, {});
  EXPECT_EQ(tensors_of(folder + "/again"), tensors_of(folder + "/out"));
  EXPECT_EQ(config_of(folder + "/again"), config_of(folder + "/out"));
  // Another checkpoint keeps its step and its state.
  expect(ckpt({"import", folder + "/checkpoints", folder + "/copy"}), 0, {"step-5"});

  // With the config of a run.
  Config config;
  config.model.spec = model->spec();
  config.data.kind = DataKind::synthetic;
  write_text(folder + "/run.toml", to_toml(config));
  expect(ckpt({"import", folder + "/out", folder + "/with", "--config", folder + "/run.toml"}), 0,
         {});
  config.model.spec.num_attention_heads = config.model.spec.num_key_value_heads = 4;
  write_text(folder + "/run.toml", to_toml(config));
  expect(ckpt({"import", folder + "/out", folder + "/with2", "--config", folder + "/run.toml"}), 6,
         {"describe different models"});
  config.model.spec.num_hidden_layers = 3;
  write_text(folder + "/run.toml", to_toml(config));
  expect(ckpt({"import", folder + "/out", folder + "/with2", "--config", folder + "/run.toml"}), 6,
         {"does not fit", "it lacks transformer.h.2.attn.c_attn.weight"});
  EXPECT_FALSE(fs::exists(folder + "/with2"));
  fs::remove(folder + "/out/config.json");
  expect(ckpt({"import", folder + "/out", folder + "/bare"}), 0, {"step-0"});
  expect(ckpt({"export", folder + "/bare", folder + "/bare2"}), 6,
         {"does not say what model", "--config"});
}

// However many pieces a tensor is read in.
TEST(Import, ATensorIsReadFromAFileThatIsOpenedOnce) {
  const auto alone = single_communicator("alone");
  const at::Tensor values = at::arange(1000, at::kFloat).view({10, 100});
  const std::string path = save_checkpoint(*alone, temporary_folder(), {.step = 1},
                                           std::vector{whole_entry("x", "parameter", values)}, 0);
  const Source source = open_source(path);
  const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(events, path.c_str(), IN_OPEN | IN_CLOSE), 0);
  std::string streamed;
  stream_tensor(source, source.manifest.entries[0], Dtype::float32, at::empty({1024}, at::kByte),
                [&](const char* bytes, int64_t count) { streamed.append(bytes, count); });
  EXPECT_EQ(streamed, std::string(static_cast<const char*>(values.const_data_ptr()), 4000));
  char heard[4096];
  const ssize_t bytes = read(events, heard, sizeof(heard));
  const auto* event = reinterpret_cast<const inotify_event*>(heard);
  EXPECT_EQ(bytes, ssize_t(2 * (sizeof(*event) + event->len))) << "opened and closed once";
  close(events);
}

// A file of torch.save with one tensor "x" of [2, 3] whose elements lie as `strides` say.
void write_torch(const std::string& path, const std::vector<int64_t>& strides) {
  PickleWriter out;
  out.empty_dict(), out.mark(), out.text("x");
  out.global("torch._utils", "_rebuild_tensor_v2");
  out.mark(), out.mark(), out.text("storage"), out.global("torch", "FloatStorage");
  out.text("0"), out.text("cpu"), out.integer(6), out.tuple(), out.persistent();
  out.integer(0), out.integers({2, 3}), out.integers(strides), out.boolean(false);
  out.global("collections", "OrderedDict"), out.empty_tuple(), out.call();
  out.tuple(), out.call(), out.set_items();
  const std::string pickle = out.finish(), data(24, '\0');
  OutputFile file(path, ExitCode::checkpoint);
  ZipWriter zip(file);
  for (const auto& [name, bytes] : std::vector<std::pair<std::string, std::string>>{
           {"data.pkl", pickle}, {"byteorder", "little"}, {"data/0", data}, {"version", "3\n"}})
    zip.add("w/" + name, bytes.data(), static_cast<int64_t>(bytes.size()));
  zip.finish(), file.finish();
}

// Files of one name that differ from host to host: here in a folder of each rank's own.
TEST(Import, RanksThatFindOtherTensorsAreRefused) {
  const std::string folder = temporary_folder();
  for (const int rank : {0, 1}) {
    const std::string own = text(folder, "/", rank);
    fs::create_directory(own);
    write_safetensors(own + "/longer.safetensors", {{"x", at::ones({2 + rank})}});
    write_torch(own + "/turned.pt",
                rank == 0 ? std::vector<int64_t>{3, 1} : std::vector<int64_t>{1, 2});
  }
  run_ranks(2, [&](World& world) {
    const auto group = world.group("world", std::vector<int>{0, 1});
    ASSERT_EQ(chdir(text(folder, "/", group->rank()).c_str()), 0);
    for (const std::string file : {"longer.safetensors", "turned.pt"}) try {
        load_weights(*group, file, small_model_spec(), {});
        ADD_FAILURE() << file << " is not the same everywhere";
      } catch (const Error& error) {
        expect_contains(error.what(), {"rank 1 finds other tensors in ", file, "than rank 0"});
      }
  });
}

TEST(Import, ADamagedCheckpointIsRefusedAndNothingIsLeft) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  flip_last_byte(path + "/state-00000-of-00001.safetensors");
  fs::create_directory(folder + "/empty");  // not made by the command: it stays
  for (const char* command : {"import", "copy"})
    for (const char* place : {"/deep/place", "/place/", "/empty"}) {
      SCOPED_TRACE(text(command, " ", place));
      expect(ckpt({command, path, folder + place}), 6,
             {"state-00000-of-00001.safetensors is damaged", "the manifest's hash"});
      std::vector<std::string> left;
      for (const auto& entry : fs::directory_iterator(folder))
        left.push_back(entry.path().filename());
      std::sort(left.begin(), left.end());
      EXPECT_EQ(left, (std::vector<std::string>{"checkpoints", "empty"}));
    }
}

// Its files are ordinary safetensors, but only a manifest says that they are all there and whole.
TEST(Weights, ACheckpointWithoutItsManifestIsNotAFolderOfWeights) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const std::string path = saved(folder + "/checkpoints", *model);
  const std::string file = "/state-00000-of-00001.safetensors";
  const std::string none = "is an unfinished or broken checkpoint: it has no manifest.json";
  fs::remove(path + "/manifest.json");
  fs::create_directories(folder + "/only-state");
  fs::copy_file(path + file, folder + "/only-state" + file);
  fs::create_directories(folder + "/.tmp-step-5-ab");
  fs::copy_file(path + file, folder + "/.tmp-step-5-ab/model.safetensors");
  for (const std::string& broken : {path, folder + "/only-state", folder + "/.tmp-step-5-ab/"})
    for (const char* command : {"inspect", "verify"}) {
      SCOPED_TRACE(text(command, " ", broken));
      expect(ckpt({command, broken}), 6, {none});
    }
  fs::remove(path + file);
  expect(ckpt({"inspect", path}), 6, {none});
  expect(ckpt({"inspect", folder + "/only-state" + file}), 0, {"huggingface"});
}

// What transformers reads from our exports and what we read from its folders give equal logits.
TEST(Weights, ATiedHeadMayBeThereButNotWithValuesOfItsOwn) {
  const std::string folder = temporary_folder();
  auto model = model_of(small_model_spec(), at::kFloat);
  const auto alone = single_communicator("world");
  NamedTensors tensors;
  for (const Parameter& parameter : parameters_of(*model))
    tensors.emplace_back(parameter->spec.pieces[0].name, parameter->tensor.detach().clone());
  const at::Tensor embedding = tensors[0].second;
  ASSERT_EQ(tensors[0].first, "transformer.wte.weight");
  const auto load = [&](const NamedTensors& held) {
    fs::create_directories(folder + "/f");
    write_safetensors(folder + "/f/model.safetensors", held);
    auto fresh = make_model(model->spec(), at::kFloat);
    allocate_and_initialize(parameters_of(*fresh), 0);
    try {
      load_weights(*alone, folder + "/f", fresh->spec(), entries_of(*fresh));
      EXPECT_TRUE(at::equal(fresh->root_parameters()[0]->tensor.detach(), embedding));
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(load(tensors), "");
  tensors.emplace_back("lm_head.weight", embedding.clone());
  EXPECT_EQ(load(tensors), "");
  tensors.back().second[60][23] += 1;
  EXPECT_NE(load(tensors).find("lm_head.weight of its own"), std::string::npos);
  tensors.back() = {"score.weight", at::ones({2})};
  EXPECT_NE(load(tensors).find("score.weight"), std::string::npos);
  tensors.pop_back();
  write_index(folder + "/f", {{"transformer.wte.weight", "model.safetensors"}});
  EXPECT_NE(load(tensors).find("index.json does not list transformer.wpe.weight, "),
            std::string::npos);
  fs::remove(folder + "/f/model.safetensors.index.json");
  tensors.pop_back();
  const std::string lost = load(tensors);
  EXPECT_NE(lost.find("lacks parameter of transformer.h.1.mlp.c_proj.bias"), std::string::npos)
      << lost;
}

}  // namespace
}  // namespace phalanx::testing
