#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/checkpoint/copy.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/s3_storage.h"
#include "phalanx/checkpoint/s3_xml.h"
#include "phalanx/checkpoint/verify.h"
#include "tests/checkpoint/s3_server.h"
#include "tests/checkpoint/state_of_test.h"

extern "C" int phalanx_command_ckpt(int argc, char** argv);

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using testing::Fault;
using testing::flat_state;
using testing::S3Proxy;
using testing::S3Server;
using testing::ThreadRanks;

const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true},
                                          {"exp_avg", at::kFloat, true}};

std::vector<std::string> save(const std::string& place, int64_t step, int ranks, int keep = 0,
                              int64_t samples = 0) {
  return ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), ranks, true,
                                  static_cast<int>(step));
    save_checkpoint(world, place, {.step = step, .consumed_samples = samples}, state, keep);
  });
}

void save_ok(const std::string& place, int64_t step, int ranks, int keep = 0, int64_t samples = 0) {
  for (const auto& error : save(place, step, ranks, keep, samples)) ASSERT_EQ(error, "");
}

// Starts as a new process would: cleans, finds the newest, loads all of it. "step-3", or "none".
std::string resumed(const std::string& place, int ranks, bool cleans = true) {
  std::string found = "none";
  const auto errors = ThreadRanks::run(ranks, [&](Communicator& world) {
    if (cleans) prepare_checkpoints(world, place);
    const auto path = newest_checkpoint(world, place);
    if (!path) return;
    const auto state = flat_state(testing::small_model(), roles, world.rank(), ranks, false);
    const RunState run = load_checkpoint(world, *path, state, {.verify_hashes = true});
    const std::string wrong = testing::differences(state, static_cast<int>(run.step));
    require(wrong.empty(), ExitCode::checkpoint, wrong);
    if (world.rank() == 0) found = path->substr(place.size() + 1);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  return found;
}

std::string names(const std::string& place) {
  std::vector<std::string> found;
  for (const auto& item : open_storage(place)->list("")) found.push_back(item.name);
  return join(found, " ");
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::checkpoint);
    return error.what();
  }
  return "nothing was thrown";
}

void expect_contains(const std::string& sentence, const std::vector<std::string>& fragments) {
  for (const auto& fragment : fragments)
    EXPECT_NE(sentence.find(fragment), std::string::npos)
        << "no '" << fragment << "' in: " << sentence;
  EXPECT_EQ(sentence.find('\n'), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find(S3Server::secret), std::string::npos) << sentence;
}

std::string ckpt(std::vector<std::string> arguments, int code) {
  arguments.insert(arguments.begin(), "ckpt");
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(phalanx_command_ckpt(static_cast<int>(argv.size()), argv.data()), code);
  return ::testing::internal::GetCapturedStdout();
}

void checkpoints_work_as_in_a_folder() {
  const std::string place = "s3://bucket/runs/a b+c/checkpoints";
  EXPECT_EQ(resumed(place, 2), "none");
  save_ok(place, 1, 2);
  EXPECT_EQ(names(place), "latest step-1");
  for (int ranks : {1, 2, 3}) EXPECT_EQ(resumed(place, ranks), "step-1");
  save_ok(place, 2, 3);
  EXPECT_EQ(read_text(*open_storage(place), "latest"), "step-2\n");
  EXPECT_EQ(resumed(place, 2), "step-2");
  // The same step again gets a name of its own, and the older one goes last.
  save_ok(place, 2, 2, 0, 42);
  EXPECT_EQ(names(place), "latest step-1 step-2-2");
  EXPECT_EQ(resumed(place, 1), "step-2-2");
  EXPECT_EQ(read_manifest(place + "/step-2-2").run.consumed_samples, 42);
  save_ok(place, 2, 1, 0, 43);
  EXPECT_EQ(names(place), "latest step-1 step-2");
  for (int64_t step : {3, 4}) save_ok(place, step, 2, 2);
  EXPECT_EQ(names(place), "latest step-3 step-4");
  // Whatever way a user names it.
  for (const std::string path : {"s3://bucket/runs/a b+c", "s3://bucket/runs/a b+c/checkpoints/",
                                 "s3://bucket/runs/a b+c/checkpoints/step-4/"})
    EXPECT_EQ(resolve_checkpoint(path), place + "/step-4");
  EXPECT_NE(ckpt({"inspect", place + "/step-4"}, 0).find("wte.weight"), std::string::npos);
  EXPECT_NE(ckpt({"verify", place + "/step-4"}, 0).find("is whole"), std::string::npos);

  // Broken ones are passed over: cut, or with a flipped byte of the manifest.
  const auto storage = open_storage(place);
  const std::string file = "step-4/state-00000-of-00002.safetensors";
  std::string bytes = read_text(*storage, file);
  storage->replace(file, std::string_view(bytes).substr(1));
  EXPECT_EQ(resumed(place, 2), "step-3");
  expect_contains(error_of([&] {
                    ThreadRanks::run(1, [&](Communicator& world) {
                      load_checkpoint(world, place + "/step-4", {});
                    });
                    fail(ExitCode::checkpoint,
                         join(size_defects(*storage, "step-4", read_manifest(place + "/step-4"))));
                  }),
                  {place, file, "bytes, the manifest says"});
  bytes.back() ^= 1;
  storage->replace(file, bytes);
  EXPECT_NE(ckpt({"verify", place + "/step-4"}, 1).find("does not have the manifest's hash"),
            std::string::npos);
}

void large_objects_go_in_parts() {
  const auto storage = open_storage("s3://bucket/large");
  std::string bytes(2 * S3Storage::part_bytes + 12345, '\0');
  std::minstd_rand random(7);
  for (size_t i = 0; i < bytes.size(); i += 64) bytes[i] = static_cast<char>(random());
  for (const int64_t size :
       {int64_t{0}, int64_t{1}, int64_t{65536}, int64_t{65537}, S3Storage::part_bytes,
        S3Storage::part_bytes + 1, 2 * S3Storage::part_bytes, static_cast<int64_t>(bytes.size())}) {
    SCOPED_TRACE(size);
    const auto writer = storage->create("file");
    for (int64_t at = 0; at < size; at += 7'000'000)
      writer->write(bytes.data() + at, std::min<int64_t>(size - at, 7'000'000));
    writer->finish();
    EXPECT_EQ(writer->bytes(), size);
    EXPECT_EQ(storage->list("")[0].bytes, size);
    EXPECT_TRUE(read_text(*storage, "file") == bytes.substr(0, size));
    const auto reader = storage->open("file");
    for (int round = 0; round < 5 && size > 0; ++round) {
      const int64_t at = static_cast<int64_t>(random()) % size;
      std::string part(std::min<int64_t>(size - at, 100'000), '\0');
      reader->read(part.data(), static_cast<int64_t>(part.size()), at);
      EXPECT_TRUE(part == bytes.substr(at, part.size())) << at;
    }
    char more[2];
    expect_contains(error_of([&] { reader->read(more, 2, size - 1); }),
                    {"s3://bucket/large/file", "the file was cut"});
  }
  // A writer that is given up leaves nothing, not even an upload that costs money.
  {
    const auto writer = storage->create("step-9/given-up");
    writer->write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  EXPECT_EQ(names("s3://bucket/large"), "file");
  EXPECT_TRUE(storage->unfinished().empty());
}

void lists_have_many_pages() {
  const S3Client client(read_s3_settings(), "bucket");
  const auto storage = open_storage("s3://bucket/many");
  for (int i = 0; i < 1005; ++i)
    client.require_good({.method = "PUT", .key = text("many/folder/", i), .body = ""}, "put");
  EXPECT_EQ(storage->list("folder").size(), 1005u);
  EXPECT_EQ(names("s3://bucket/many"), "folder");
  EXPECT_TRUE(storage->list("fold").empty());
  storage->remove("folder");
  storage->remove("folder");
  EXPECT_TRUE(storage->list("").empty());
}

void copies_both_ways() {
  const std::string folder = testing::temporary_folder(), place = "s3://bucket/copies";
  save_ok(folder + "/checkpoints", 7, 2);
  auto here = open_storage(folder + "/checkpoints"), there = open_storage(place);
  const CopiedCheckpoint copied = copy_checkpoint(*here, "step-7", *there);
  EXPECT_EQ(copied.path, place + "/step-7");
  EXPECT_EQ(resumed(place, 3), "step-7");
  auto back = open_storage(folder + "/back");
  EXPECT_EQ(copy_checkpoint(*open_storage(copied.path), "", *back).path, folder + "/back/step-7");
  EXPECT_EQ(resumed(folder + "/back", 3), "step-7");
  for (const auto& item : here->list("step-7"))
    EXPECT_TRUE(read_text(*here, "step-7/" + item.name) == read_text(*back, "step-7/" + item.name));
}

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * getpagesize();
}

// Of more than a part: one that is not freed shows.
void many_saves_leak_nothing() {
  const std::string place = "s3://bucket/many-saves";
  const at::Tensor big = at::ones({S3Storage::part_bytes / 4 + 1}, at::kFloat);
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  int64_t memory = 0;
  std::ptrdiff_t files = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    const auto errors = ThreadRanks::run(1, [&](Communicator& world) {
      save_checkpoint(world, place, {.step = step},
                      std::vector{whole_entry("big", "parameter", big)}, 2);
    });
    ASSERT_EQ(errors[0], "");
    if (step == 4) memory = resident_bytes(), files = open_files();
  }
  EXPECT_LT(resident_bytes(), memory + S3Storage::part_bytes);
  EXPECT_EQ(open_files(), files);
  EXPECT_EQ(names(place), "latest step-19 step-20");
}

// A run's Checkpointer, in the background; then through a folder of its host.
void saves_in_the_background() {
  const std::string place = "s3://bucket/background", local = testing::temporary_folder();
  for (int64_t first : {1, 4}) {
    const std::string through = first == 1 ? "" : local;
    const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
      const SaveOptions options{
          .keep = 2, .async = true, .verify_after_save = true, .local = through};
      Checkpointer checkpointer(world, place, options);
      for (int64_t step = first; step < first + 3; ++step)
        checkpointer.save({.step = step}, flat_state(testing::small_model(), roles, world.rank(), 2,
                                                     true, static_cast<int>(step)));
      checkpointer.finish();
      EXPECT_EQ(checkpointer.newest(), text(place, "/step-", first + 2));
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    EXPECT_EQ(names(place), text("latest step-", first + 1, " step-", first + 2));
    EXPECT_EQ(resumed(place, 3), text("step-", first + 2));
  }
  EXPECT_EQ(resumed(local_place(local, place), 2), "step-6");
}

void refusals_are_one_sentence() {
  const std::string place = "s3://bucket/refusals";
  save_ok(place, 1, 2);
  const auto resume_error = [](const std::string& where) {
    const auto errors =
        ThreadRanks::run(2, [&](Communicator& world) { newest_checkpoint(world, where); });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
  expect_contains(resume_error(place), {"rank 0: ", place, "403 SignatureDoesNotMatch",
                                        S3Server::key, "the environment"});
  EXPECT_EQ(save(place, 2, 2)[1].substr(0, 8), "rank 0: ");
  setenv("AWS_SECRET_ACCESS_KEY", S3Server::secret, 1);
  setenv("AWS_ACCESS_KEY_ID", "NOBODY", 1);
  expect_contains(resume_error(place), {"403 InvalidAccessKeyId", "NOBODY"});
  S3Server::use(0);
}

TEST(S3, HoldsCheckpointsAsAFolderDoes) {
  const S3Server server;
  checkpoints_work_as_in_a_folder();
  large_objects_go_in_parts();
  lists_have_many_pages();
  copies_both_ways();
  many_saves_leak_nothing();
  saves_in_the_background();
  refusals_are_one_sentence();
  S3Server::use(server.port());
  EXPECT_EQ(resumed("s3://bucket/refusals", 1), "step-1");
  const auto missing = error_of([] { resolve_checkpoint("s3://no-such-bucket/a"); });
  expect_contains(missing, {"s3://no-such-bucket/a", "404 NoSuchBucket", "create it"});
  expect_contains(error_of([] { resolve_checkpoint("s3://bucket/nothing"); }),
                  {"there is no checkpoint in s3://bucket/nothing"});
  expect_contains(error_of([] { open_storage("s3://bucket/a")->open("b"); }),
                  {"cannot read s3://bucket/a/b", "404 NoSuchKey"});
}

}  // namespace
}  // namespace phalanx
