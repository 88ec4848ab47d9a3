#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>

#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/s3_storage.h"
#include "tests/checkpoint/s3_server.h"
#include "tests/checkpoint/state_of_test.h"

namespace phalanx {
namespace {

using testing::Fault;
using testing::S3Proxy;
using testing::S3Server;
using testing::ThreadRanks;

const std::string place = "s3://bucket/checkpoints";
const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true}};

std::string save(int64_t step, int keep = 0) {
  const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
    const auto state = testing::flat_state(testing::small_model(), roles, world.rank(), 2, true,
                                           static_cast<int>(step));
    save_checkpoint(world, place, {.step = step}, state, keep);
  });
  EXPECT_EQ(errors[0], errors[1]) << "ranks disagree";
  return errors[0];
}

// Loads the newest on `ranks` ranks; what went wrong, or the step that it was saved after.
std::string load(int ranks) {
  std::string step = "none";
  const auto errors = ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto path = newest_checkpoint(world, place);
    if (!path) return;
    const auto state =
        testing::flat_state(testing::small_model(), roles, world.rank(), ranks, false);
    const RunState run = load_checkpoint(world, *path, state, {.verify_hashes = true});
    const std::string wrong = testing::differences(state, static_cast<int>(run.step));
    require(wrong.empty(), ExitCode::checkpoint, wrong);
    if (world.rank() == 0) step = text(run.step);
  });
  return errors[0].empty() ? step : errors[0];
}

void start_anew() {
  for (const auto& error :
       ThreadRanks::run(2, [](Communicator& world) { prepare_checkpoints(world, place); }))
    EXPECT_EQ(error, "");
}

std::string names() {
  std::vector<std::string> found;
  for (const auto& item : open_storage(place)->list("")) found.push_back(item.name);
  return join(found, " ");
}

bool has(const std::string& sentence, const std::string& fragment) {
  return sentence.find(fragment) != std::string::npos;
}

// Slowness takes its time to be noticed; all else is met at once.
void be_patient(Fault fault, int attempts) {
  set_s3_patience({.attempts = attempts,
                   .first_pause = std::chrono::milliseconds(20),
                   .attempt = std::chrono::milliseconds(fault == Fault::drip ? 1500 : 20'000)});
}

struct Trouble {
  const char* name;
  Fault fault;
  std::vector<std::string> says;
};

// For a while: the save and the load go through as if nothing had been.
void passing_trouble(S3Proxy& proxy) {
  for (const Fault fault : {Fault::error_500, Fault::half_body, Fault::reset, Fault::drip}) {
    SCOPED_TRACE(static_cast<int>(fault));
    be_patient(fault, 6);
    const int every = fault == Fault::drip ? 40 : 3;
    proxy.set_rule(
        [=](const std::string&, int number) { return number % every == 1 ? fault : Fault::none; });
    EXPECT_EQ(save(2), "");
    EXPECT_EQ(load(3), "2");
    EXPECT_GT(proxy.requests(), 20);
    proxy.set_rule(nullptr);
    open_storage(place)->remove("step-2");
    EXPECT_EQ(names(), "latest step-1");
  }
}

// For ever: one sentence on all ranks, soon; the older checkpoint is as it was.
void lasting_trouble(S3Proxy& proxy) {
  const std::vector<Trouble> troubles = {
      {"500", Fault::error_500, {"500 InternalError (We lost a disk)", "2 attempts", "try again"}},
      {"slow", Fault::drip, {"2 attempts", "endpoint"}},
      {"half a body", Fault::half_body, {"2 attempts"}},
      {"reset", Fault::reset, {"2 attempts", "endpoint"}},
      {"403", Fault::refuse, {"403 AccessDenied (Access Denied)", S3Server::key, "bucket bucket"}}};
  for (const Trouble& trouble : troubles) {
    SCOPED_TRACE(trouble.name);
    be_patient(trouble.fault, 2);
    proxy.set_rule([&](const std::string&, int) { return trouble.fault; });
    const std::string loading = load(2);
    for (const auto& fragment : trouble.says) EXPECT_TRUE(has(loading, fragment)) << loading;
    EXPECT_TRUE(has(loading, place)) << loading;
    // Writing alone: what is there can still be read.
    proxy.set_rule([&](const std::string& line, int) {
      return line.starts_with("PUT ") && has(line, "step-2") ? trouble.fault : Fault::none;
    });
    const std::string saving = save(2);
    if (trouble.fault != Fault::half_body) {  // of nothing
      for (const auto& fragment : trouble.says) EXPECT_TRUE(has(saving, fragment)) << saving;
      EXPECT_TRUE(has(saving, "cannot write " + place + "/step-2/state-0000")) << saving;
    }
    proxy.set_rule(nullptr);
    if (saving.empty()) open_storage(place)->remove("step-2");
    be_patient(Fault::none, 6);
    EXPECT_EQ(names(), "latest step-1") << "what was written of step-2 is removed";
    EXPECT_EQ(load(2), "1");
  }
  for (const auto& [fault, says] : {std::pair(Fault::ignore_range, "more than was asked for"),
                                    std::pair(Fault::other_range, "'bytes 1-65535/200000'")}) {
    proxy.set_rule([fault = fault](const std::string&, int) { return fault; });
    try {
      open_storage("s3://bucket")->open("ranges");
      ADD_FAILURE() << "a server that serves no ranges, or others, was believed";
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), says)) << error.what();
    }
    EXPECT_EQ(proxy.requests(), 1) << "that is not tried again";
  }
  proxy.set_rule(nullptr);
}

// An object of several parts, each of which may fail.
void trouble_with_parts(S3Proxy& proxy) {
  const std::string large = "s3://bucket/large";
  std::string bytes(2 * S3Storage::part_bytes + 999, 'x');
  for (size_t i = 0; i < bytes.size(); i += 512) bytes[i] = static_cast<char>(i >> 9);
  const auto write = [&] {
    try {
      const auto writer = open_storage(large)->create("step-1/file");
      writer->write(bytes.data(), static_cast<int64_t>(bytes.size()));
      writer->finish();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto rule_for = [](const std::string& what, Fault fault, int times) {
    const auto left = std::make_shared<std::atomic<int>>(times);
    return [=](const std::string& line, int) {
      return has(line, what) && (*left)-- > 0 ? fault : Fault::none;
    };
  };
  be_patient(Fault::none, 3);
  for (const auto& [what, fault] :
       {std::pair("partNumber=2", Fault::error_500), std::pair("partNumber=1", Fault::reset),
        std::pair("partNumber=3", Fault::lose_answer), std::pair("POST", Fault::lose_answer),
        std::pair("?uploadId=", Fault::lose_answer), std::pair("?uploadId=", Fault::error_200),
        std::pair("GET", Fault::half_body)}) {
    SCOPED_TRACE(what);
    proxy.set_rule(rule_for(what, fault, 1));
    EXPECT_EQ(write(), "");
    EXPECT_TRUE(read_text(*open_storage(large), "step-1/file") == bytes);
    open_storage(large)->remove("step-1");
    EXPECT_TRUE(open_storage(large)->unfinished().empty());
  }
  proxy.set_rule(rule_for("POST /bucket/large/step-1/file?uploadId=", Fault::error_200, 99));
  const std::string lasting = write();
  EXPECT_TRUE(has(lasting, "200 InternalError (We lost a disk)")) << lasting;
  EXPECT_TRUE(has(lasting, "3 attempts") && has(lasting, "try again later")) << lasting;
  EXPECT_TRUE(open_storage(large)->unfinished().empty()) << "the upload is given up";
  for (const std::string what : {"partNumber=2", "partNumber=3", "?uploadId="}) {
    SCOPED_TRACE(what);
    proxy.set_rule(rule_for(what, Fault::refuse, 1));
    const std::string error = write();
    EXPECT_TRUE(has(error, "cannot write s3://bucket/large/step-1/file")) << error;
    EXPECT_TRUE(has(error, "403 AccessDenied")) << error;
    EXPECT_TRUE(open_storage(large)->unfinished().empty()) << "the upload is given up";
  }
  proxy.set_rule(nullptr);
  // What a killed save left of an upload costs money: the next start gives it up.
  const S3Client client(read_s3_settings(), "bucket");
  client.require_good(
      {.method = "POST", .key = "checkpoints/step-7/state", .query = {{"uploads", ""}}, .body = ""},
      "begin");
  EXPECT_EQ(open_storage(place)->unfinished(), std::vector<std::string>{"step-7"});
  start_anew();
  EXPECT_TRUE(open_storage(place)->unfinished().empty());
}

// Keys that may read only get no list of uploads; who reads has no use for one.
void readers_ask_for_no_uploads(S3Proxy& proxy) {
  be_patient(Fault::none, 2);
  std::atomic<int> asked = 0;
  proxy.set_rule([&](const std::string& line, int) {
    if (!has(line, "uploads")) return Fault::none;
    ++asked;
    return Fault::refuse;
  });
  EXPECT_EQ(load(2), "1");
  EXPECT_EQ(resolve_checkpoint(place), place + "/step-1");
  EXPECT_EQ(asked, 0);
  proxy.set_rule(nullptr);
}

// A server whose list never ends is asked once more, not for ever.
void lists_that_lead_back(S3Proxy& proxy) {
  proxy.set_rule([](const std::string&, int) { return Fault::same_page; });
  const std::string error = load(1);
  EXPECT_TRUE(has(error, "cannot list " + place) && has(error, "come back to 'again'")) << error;
  EXPECT_LE(proxy.requests(), 4);
  proxy.set_rule(nullptr);
}

// Killed before every fourth request of the save of a new step, and every sixth of one that is
// there: the older one loads, or the new one, and the next start cleans up.
void killed_anywhere(S3Proxy& proxy) {
  for (const int64_t step : {2, 1}) {
    int finished_at = 0;
    std::string seen;
    for (int at = static_cast<int>(step); finished_at == 0; at += step == 2 ? 4 : 6) {
      SCOPED_TRACE(::testing::Message() << "step " << step << ", request " << at);
      ASSERT_LT(at, 100);
      for (const auto& item : open_storage(place)->list("")) open_storage(place)->remove(item.name);
      ASSERT_EQ(save(1), "");
      const auto child = std::make_shared<std::atomic<pid_t>>(0);
      proxy.set_rule([=](const std::string&, int number) {
        if (number < at) return Fault::none;
        while (*child == 0) std::this_thread::yield();
        kill(*child, SIGKILL);
        return Fault::reset;
      });
      const pid_t started = fork();
      if (started == 0) _exit(save(step, 1).empty() ? 0 : 1);
      *child = started;
      siginfo_t ended{};
      waitid(P_PID, started, &ended, WEXITED | WNOWAIT);  // its number is not given to another yet
      proxy.await_quiet();
      proxy.set_rule(nullptr);
      int status = 0;
      waitpid(started, &status, 0);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0);
        finished_at = at;
      }
      start_anew();
      const std::string loaded = load(1);
      EXPECT_TRUE(loaded == "1" || loaded == text(step)) << loaded;
      if (finished_at) EXPECT_EQ(loaded, text(step));
      seen += loaded;
      const auto storage = open_storage(place);
      EXPECT_TRUE(storage->unfinished().empty());
      for (const auto& candidate : candidates(*storage))
        EXPECT_EQ(candidate.defect, "") << "one that was being deleted is no checkpoint any more";
    }
    EXPECT_GT(finished_at, 10);
    if (step == 2) EXPECT_TRUE(has(seen, "111") && has(seen, "222")) << seen;
  }
}

TEST(S3Faults, LeaveTheOlderCheckpointAndSayWhatHappened) {
  const S3Server server;
  S3Proxy proxy(server.port());
  S3Server::use(proxy.port());
  EXPECT_EQ(save(1), "");
  open_storage("s3://bucket")->replace("ranges", std::string(200'000, 'x'));
  passing_trouble(proxy);
  lasting_trouble(proxy);
  trouble_with_parts(proxy);
  readers_ask_for_no_uploads(proxy);
  lists_that_lead_back(proxy);
  killed_anywhere(proxy);
}

}  // namespace
}  // namespace phalanx
