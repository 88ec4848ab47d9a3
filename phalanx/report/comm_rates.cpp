#include "phalanx/report/comm_rates.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <stdlib.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/agree.h"
#include "phalanx/comm/scalar.h"

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;
const Call call{.unit = "bench", .purpose = "bench"};

double seconds_of(const std::function<void()>& act) {
  const auto begin = Clock::now();
  act();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void finish(const Handle& handle) {
  handle.wait();
  handle.wait_inputs();
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> make_gloo(Communicator& group) {
  const std::string folder = agree_with_first(group, "bench", [] {
    std::error_code error;
    const auto place = std::filesystem::temp_directory_path(error);
    require(!error, ExitCode::environment,
            "there is no folder for temporary files: ", error.message(), "; set TMPDIR to one");
    std::string made = place / "phalanx-bench-XXXXXX";
    const bool is_made = mkdtemp(made.data());
    require(is_made, ExitCode::environment, "cannot make a folder in ", place.string(), ": ",
            std::strerror(errno), "; set TMPDIR to another");
    return made;
  });
  auto settings = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(120));
  settings->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto made = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(folder + "/store", group.size()), group.rank(),
      group.size(), settings);
  group.barrier(call);
  if (group.rank() == 0) std::filesystem::remove_all(folder);
  return made;
}

/// One way to run one operation, with its buffers.
struct Way {
  std::string name;
  std::function<void()> run;
  std::vector<double> times;
};

std::vector<Way> ways(Communicator& group, c10d::ProcessGroupGloo* gloo,
                      const std::string& operation, int64_t bytes) {
  const int64_t count = bytes / 4, part = count / group.size();
  std::vector<Way> result;
  const auto add = [&](const char* name, at::Tensor whole, at::Tensor piece) {
    result.push_back({name, [&group, operation, whole, piece] {
                        if (operation == "all_gather")
                          finish(group.all_gather(whole, piece, call));
                        else if (operation == "reduce_scatter")
                          finish(group.reduce_scatter(piece, whole, Op::sum, call));
                        else
                          finish(group.all_reduce(whole, Op::max, call));
                      }});
  };
  add("phalanx", group.allocate(bytes).view(at::kFloat).fill_(1).narrow(0, 0, part * group.size()),
      group.allocate(part * 4).view(at::kFloat).fill_(1));
  add("phalanx, private", at::ones({part * group.size()}), at::ones({part}));
  if (!gloo) return result;
  auto whole = at::ones({part * group.size()}), piece = at::ones({part});
  result.push_back({"gloo", [gloo, operation, whole, piece]() mutable {
                      std::vector<at::Tensor> tensors{whole};
                      c10d::AllreduceOptions settings;
                      settings.reduceOp = c10d::ReduceOp::MAX;
                      if (operation == "all_gather")
                        gloo->_allgather_base(whole, piece)->wait();
                      else if (operation == "reduce_scatter")
                        gloo->_reduce_scatter_base(piece, whole)->wait();
                      else
                        gloo->allreduce(tensors, settings)->wait();
                    }});
  return result;
}

// What the call must read and write on each rank, halved: a memcpy of it moves as many bytes.
int64_t copied_bytes(const std::string& operation, int64_t bytes, int size) {
  if (operation == "all_gather") return bytes;                           // n read, n written
  if (operation == "reduce_scatter") return (bytes + bytes / size) / 2;  // n read, n/N written
  return (bytes + bytes / size) / 2 + (bytes - bytes / size);            // and n - n/N copied
}

double median(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<CommRate> measure(Communicator& group, c10d::ProcessGroupGloo* gloo,
                              const std::string& operation, int64_t bytes, double seconds) {
  auto all = ways(group, gloo, operation, bytes);
  const int64_t copied = copied_bytes(operation, bytes, group.size());
  auto from = at::ones({copied}, at::kByte), to = at::ones({copied}, at::kByte);
  std::vector<double> copies;
  const auto timed = [&](int calls, const std::function<void()>& run) {
    group.barrier(call);
    const double mine = seconds_of([&] {
      for (int i = 0; i < calls; ++i) run();
    });
    return all_reduce(group, mine, Op::max, call) / calls;  // the slowest rank's
  };
  double once = 0;
  for (Way& way : all) once += timed(1, way.run), once += timed(1, way.run);
  const int calls = bytes <= (64 << 10) ? 50 : 1;
  const double round = once / 2 * calls;
  const int rounds = std::clamp(int(seconds / std::max(round, 1e-6)), 5, 200);
  for (int i = 0; i < rounds; ++i) {
    for (Way& way : all) way.times.push_back(timed(calls, way.run));
    copies.push_back(timed(
        calls, [&] { std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), size_t(copied)); }));
  }
  std::vector<CommRate> result;
  for (Way& way : all) {
    const double middle = median(way.times);
    result.push_back({operation, bytes, way.name, middle, way.times.front(), median(copies)});
  }
  return result;
}

}  // namespace

std::vector<CommRate> measure_collectives(World& world, const CommRateOptions& options) {
  auto group = group_of_all_ranks(world, "bench");
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  if (options.gloo && group->transport() == "shared memory") gloo = make_gloo(*group);
  std::vector<CommRate> result;
  for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce"})
    for (int64_t bytes : options.sizes)
      for (auto& rate : measure(*group, gloo.get(), operation, bytes, options.seconds))
        result.push_back(std::move(rate));
  group->barrier(call);
  return result;
}

std::vector<double> all_reduce_latencies(World& world, int64_t bytes, int calls) {
  auto group = group_of_all_ranks(world, "latency");
  auto tensor = at::ones({bytes / 4});
  std::vector<double> times;
  for (int i = 0; i < calls / 10; ++i) group->all_reduce(tensor, Op::max, call).wait();
  group->barrier(call);
  for (int i = 0; i < calls; ++i)
    times.push_back(seconds_of([&] { group->all_reduce(tensor, Op::max, call).wait(); }));
  group->barrier(call);
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace phalanx
