// PyTorch's torch.distributed.checkpoint: its folders in, ours to it.
#include "phalanx/checkpoint/dcp.h"

#include <filesystem>
#include <random>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/pickle.h"
#include "phalanx/checkpoint/storage.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/checkpoint/torch_oracle.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

Source open(const std::string& folder, const std::string& name) {
  return open_dcp(open_storage(folder), name, folder + "/" + name);
}

void write(const std::string& path, const std::string& bytes) {
  OutputFile out(path, ExitCode::checkpoint);
  out.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  out.finish();
}

// What torch_oracle.py compares with: the tensors of `source`, which is not written by it.
void list_for_oracle(const Source& source, const std::string& path) {
  nlohmann::json listed = {{"step", std::get<int64_t>(source.manifest.run.values.at("updates"))},
                           {"tensors", nlohmann::json::array()}};
  for (const auto& entry : source.manifest.entries) {
    const at::Tensor whole = testing::read_whole(source, entry);
    const std::string file = text(path, ".", listed["tensors"].size(), ".bin");
    write(file, {static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()});
    listed["tensors"].push_back({{"name", entry.name},
                                 {"role", entry.role},
                                 {"dtype", name(entry.dtype)},
                                 {"shape", entry.shape},
                                 {"file", file}});
  }
  write(path + ".json", listed.dump());
}

// A checkpoint of ours, saved by two ranks that cut it flat, after a step that was skipped.
std::string save_ours(const std::string& folder) {
  const auto errors = testing::ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = testing::flat_state(testing::small_model(),
                                           {{"parameter", at::kBFloat16, true},
                                            {"exp_avg", at::kFloat, true},
                                            {"exp_avg_sq", at::kFloat, true}},
                                           world.rank(), 2, true);
    save_checkpoint(world, folder,
                    {.step = 12, .consumed_samples = 96, .values = {{"updates", int64_t{11}}}},
                    state, 0);
  });
  EXPECT_EQ(errors[0], "");
  return folder + "/step-12";
}

// Sequential(Linear(4, 3), BatchNorm1d(3)) with a mask: its state_dict() has buffers among the
// parameters.
void export_buffers(const std::string& folder) {
  const at::TensorOptions kind = at::kFloat;
  const std::vector<StateEntry> state = {
      whole_entry("0.weight", "parameter", at::arange(12, kind).view({3, 4})),
      whole_entry("0.bias", "parameter", at::arange(3, kind)),
      whole_entry("1.weight", "parameter", at::arange(3, 6, kind)),
      whole_entry("1.bias", "parameter", at::arange(6, 9, kind)),
      whole_entry("1.weight", "exp_avg", at::arange(9, 12, kind)),
      whole_entry("1.running_mean", "buffer", at::arange(12, 15, kind)),
      whole_entry("1.running_var", "buffer", at::arange(15, 18, kind)),
      whole_entry("1.num_batches_tracked", "buffer", at::full({}, 18, at::kLong)),
      whole_entry("mask", "buffer", at::eye(2, 3, at::kBool))};
  const auto alone = single_communicator("alone");
  const Source ours = open_source(save_checkpoint(
      *alone, folder + "/norm-ours", {.step = 3, .values = {{"updates", int64_t{3}}}}, state, 0));
  export_dcp(ours, folder + "/norm");
  list_for_oracle(ours, folder + "/norm");
  testing::expect_source(open(folder, "norm"), folder + "/norm.json");
}

// A parameter of more bytes than a chunk may have: 0 to 250, again and again.
void export_large(const std::string& folder) {
  const at::Tensor large =
      at::arange(251, at::kByte).repeat({5, 60'000}).contiguous();  // 75 MB, two chunks
  const auto errors = testing::ThreadRanks::run(1, [&](Communicator& world) {
    save_checkpoint(world, folder + "/large-ours", {.step = 1},
                    std::vector{whole_entry("big", "parameter", large)}, 0);
  });
  ASSERT_EQ(errors[0], "");
  export_dcp(open_source(folder + "/large-ours"), folder + "/large");
  const Source read = open(folder, "large");
  ASSERT_EQ(read.manifest.entries.size(), 1u);
  EXPECT_EQ(read.manifest.entries[0].parts.size(), 2u);
  for (const auto& part : read.manifest.entries[0].parts) EXPECT_LE(part.bytes, 64 << 20);
  EXPECT_TRUE(at::equal(testing::read_whole(read, read.manifest.entries[0]), large));
}

// Exports that convert, and exports that fail.
void export_otherwise(const Source& ours, const std::string& folder) {
  EXPECT_EQ(export_dcp(ours, folder + "/wide", {.dtype = Dtype::float64}).dtype, Dtype::float64);
  const Source wide = open(folder, "wide");
  ASSERT_EQ(wide.manifest.entries.size(), ours.manifest.entries.size());
  for (size_t i = 0; i < ours.manifest.entries.size(); ++i) {
    const auto& a = ours.manifest.entries[i];
    const auto& b = wide.manifest.entries[i];
    EXPECT_EQ(b.dtype, a.role == "parameter" ? Dtype::float64 : a.dtype);
    EXPECT_TRUE(at::equal(testing::read_whole(ours, a).to(at::kDouble),
                          testing::read_whole(wide, b).to(at::kDouble)));
  }
  for (const std::string at : {"write", "sync", "rename"}) {
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      if (operation == at && path.find("/failed") != std::string::npos)
        fail(ExitCode::checkpoint, "no space at ", at);
    });
    EXPECT_EQ(testing::error_of([&] { export_dcp(ours, folder + "/failed"); }),
              "no space at " + at);
    set_disk_hook({});
    for (const auto& item : fs::directory_iterator(folder))
      EXPECT_FALSE(item.path().filename().string().starts_with("failed")) << item.path();
  }
}

// Files cut and bytes flipped: an Error, or tensors that can be read.
void damage(const std::string& folder) {
  fs::copy(folder + "/sharded", folder + "/damaged", fs::copy_options::recursive);
  const auto outcome = [&] {
    return testing::error_of([&] {
      const Source source = open(folder, "damaged");
      for (const auto& entry : source.manifest.entries)
        if (element_count(entry.shape) < 1000) testing::read_whole(source, entry);
    });
  };
  EXPECT_EQ(outcome(), "");
  std::mt19937 random(3);
  for (const std::string file : {".metadata", "__0_0.distcp", "__1_0.distcp"}) {
    SCOPED_TRACE(file);
    const std::string path = folder + "/damaged/" + file;
    const std::string good = read_file(path, ExitCode::checkpoint);
    int refused = 0;
    for (int i = 0; i < 400; ++i) {
      std::string bad = good;
      bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
      write(path, bad);
      refused += !outcome().empty();
    }
    EXPECT_GT(refused, file == ".metadata" ? 100 : 20);
    for (size_t length = 0; length < good.size(); length += 1 + good.size() / 50) {
      write(path, good.substr(0, length));
      EXPECT_NE(outcome(), "") << "cut at " << length;
    }
    write(path, good.substr(0, good.size() - 1));
    EXPECT_NE(outcome(), "");
    fs::remove(path);
    EXPECT_NE(outcome().find(file), std::string::npos) << outcome();
    write(path, good);
  }
}

TEST(Dcp, IsReadAndWrittenAsPyTorchDoes) {
  if (!testing::has_torch_in_python()) GTEST_SKIP() << "no torch in .venv: tools/install.sh test";
  const std::string folder = testing::temporary_folder();
  const auto [made, made_output] = testing::run_oracle("dcp", folder);
  ASSERT_EQ(made, 0) << made_output;
  {
    SCOPED_TRACE("one process");
    testing::expect_source(open(folder, "flat"), folder + "/flat.json");
  }
  {
    SCOPED_TRACE("two processes");
    const Source sharded = open_source(folder + "/sharded");
    EXPECT_EQ(sharded.format, "dcp");
    EXPECT_EQ(sharded.manifest.files.size(), 2u);
    testing::expect_source(sharded, folder + "/sharded.json");
  }
  damage(folder);

  const Source ours = open_source(save_ours(folder));
  const Exported written = export_dcp(ours, folder + "/exported", {.max_file_bytes = 2000});
  EXPECT_EQ(written.dtype, Dtype::bfloat16);
  EXPECT_GT(written.files, 1) << "a new file when one is full";
  EXPECT_NE(testing::error_of([&] {
              export_dcp(ours, folder + "/exported");
            }).find("exported exists already"),
            std::string::npos);
  list_for_oracle(ours, folder + "/exported");
  {
    SCOPED_TRACE("what we wrote, read by us");
    testing::expect_source(open(folder, "exported"), folder + "/exported.json");
  }
  export_buffers(folder);
  export_large(folder);
  export_otherwise(ours, folder);
  const auto [checked, output] = testing::run_oracle("check", folder);
  EXPECT_EQ(checked, 0) << output;
}

// The metadata of one tensor "w" of two float32 in one chunk, with `extra` somewhere in it.
std::string metadata(const std::function<void(PickleWriter&)>& extra, const std::string& file,
                     int64_t offset, int64_t length) {
  PickleWriter out;
  const auto make = [&](const std::string& module, const std::string& name) {
    out.global("torch.distributed.checkpoint." + module, name);
    out.empty_tuple();
    out.make();
    out.empty_dict();
    out.mark();
  };
  const auto done = [&] { out.set_items(), out.build(); };
  make("metadata", "Metadata");
  out.text("planner_data"), extra(out);
  out.text("state_dict_metadata"), out.empty_dict(), out.mark();
  out.text("w"), make("metadata", "TensorStorageMetadata");
  out.text("properties"), make("metadata", "TensorProperties");
  out.text("dtype"), out.global("torch", "float32"), done();
  out.text("size"), out.integers({2});
  out.text("chunks"), out.empty_list(), out.mark();
  make("metadata", "ChunkStorageMetadata");
  out.text("offsets"), out.integers({0}), out.text("sizes"), out.integers({2}), done();
  out.append_items(), done(), out.set_items();
  out.text("storage_data"), out.empty_dict(), out.mark();
  make("metadata", "MetadataIndex");
  out.text("fqn"), out.text("w"), out.text("offset"), out.integers({0}), done();
  make("filesystem", "_StorageInfo");
  out.text("relative_path"), out.text(file), out.text("offset"), out.integer(offset);
  out.text("length"), out.integer(length), done();
  out.set_items(), done();
  return out.finish();
}

TEST(Dcp, RefusesMetadataThatLiesOrRuns) {
  const std::string folder = testing::temporary_folder(), path = folder + "/bad";
  fs::create_directories(path);
  write(path + "/__0_0.distcp", std::string(100, 'x'));
  write(folder + "/outside", std::string(100, 'x'));
  const auto none = [](PickleWriter& out) { out.none(); };
  const auto runs = [&](const std::string& module, const std::string& name) {
    return [=](PickleWriter& out) {
      out.global(module, name);
      out.text("touch " + folder + "/marker");
      out.tuple_of_one();
      out.call();
    };
  };
  const auto expect = [&](const std::string& bytes, const std::string& fragment) {
    write(path + "/.metadata", bytes);
    const std::string said = testing::error_of([&] { open(folder, "bad"); });
    EXPECT_NE(said.find(fragment), std::string::npos) << said;
  };
  expect(metadata(runs("os", "system"), "__0_0.distcp", 0, 100),
         "contains os.system, which is not");
  expect(metadata(runs("posix", "system"), "__0_0.distcp", 0, 100), "contains posix.system");
  expect(metadata(runs("builtins", "eval"), "__0_0.distcp", 0, 100), "contains builtins.eval");
  expect(
      metadata(runs("torch.distributed.checkpoint.metadata", "os.system"), "__0_0.distcp", 0, 100),
      "metadata.os.system, which is not data");
  EXPECT_FALSE(fs::exists(folder + "/marker"));
  expect(metadata(none, "../outside", 0, 100), "'../outside' is no name of a file");
  expect(metadata(none, "/etc/passwd", 0, 100), "is no name of a file");
  expect(metadata(none, "__7_0.distcp", 0, 100), "__7_0.distcp");
  expect(metadata(none, "__0_0.distcp", 0, 101), "the file was cut");
  expect(metadata(none, "__0_0.distcp", -1, 50), "the file was cut");
  expect(metadata(none, "__0_0.distcp", int64_t{1} << 62, int64_t{1} << 62), "the file was cut");
  expect(metadata(none, "__0_0.distcp", 0, 100), "it has no directory at its end");
  expect("\x80\x02N.", "is not the metadata of a DCP folder");
  expect("", "it is cut");
  PickleWriter other;
  other.empty_dict();
  expect(other.finish(), "it holds a dict");
}

}  // namespace
}  // namespace phalanx
