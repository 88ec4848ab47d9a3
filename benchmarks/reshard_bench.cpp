// What it costs to load a checkpoint on other ranks than wrote it:
//
//   phalanx run --nproc-per-node 2 -- build/reshard_bench save FOLDER [MEGABYTES]
//   phalanx run --nproc-per-node 4 -- build/reshard_bench load FOLDER
//
// `save` writes parameters and two states of an optimizer, flat ranges over its ranks; `load` reads
// them into flat ranges of its own ranks (FSDP) and into columns (tensor parallelism). One JSON
// line per cut: seconds until all ranks have it, and of the rank that had most, bytes read by those
// needed, and memory beyond the tensors, in bytes (the kernel's counts, of each process).
#include <ATen/ops/full.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <numeric>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/comm/world.h"
#include "phalanx/spec/unit_plan.h"

namespace phalanx {
namespace {

constexpr const char* roles[] = {"parameter", "exp_avg", "exp_avg_sq"};
constexpr int64_t width = 2048;

std::vector<ParameterSpec> specs_of(int64_t megabytes) {
  std::vector<ParameterSpec> specs;  // each 16 MB
  for (int64_t i = 0; i < std::max<int64_t>(1, megabytes / 48); ++i) {
    const std::string name = text("h.", i, ".weight");
    specs.push_back(whole_parameter(name, name, {width, width}, Kind::weight, {}));
  }
  return specs;
}

std::vector<StateEntry> flat(const std::vector<ParameterSpec>& specs, int rank, int ranks) {
  const UnitPlan plan = plan_unit("all", specs, {}, ranks);
  std::vector<StateEntry> state;
  for (const char* role : roles)
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto range = plan.range(i, rank);
      for (auto& entry :
           shard_entries(specs[i], range.begin, range.end, at::full({range.count()}, 1.0), role))
        state.push_back(std::move(entry));
    }
  return state;
}

std::vector<StateEntry> columns(const std::vector<ParameterSpec>& specs, int rank, int ranks) {
  std::vector<StateEntry> state;
  for (const char* role : roles)
    for (const auto& spec : specs) {
      Box box{{0, width / ranks * rank}, {width, width / ranks}};
      state.push_back(
          {spec.name, role, Dtype::float32, spec.local_shape, {{box, at::full(box.size, 1.0)}}});
    }
  return state;
}

int64_t bytes_read() {
  std::ifstream counters("/proc/self/io");
  std::string key;
  int64_t value = 0;
  counters >> key >> value;  // rchar
  return value;
}

int64_t memory(const std::string& kind) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(kind)) return std::stoll(line.substr(kind.size() + 1)) * 1024;
  return 0;
}

double largest(Communicator& world, double value) {
  at::Tensor all = at::full({1}, value, at::kDouble);
  world.all_reduce(all, Op::max, {"bench", "largest"}).wait();
  return *all.const_data_ptr<double>();
}

void load(Communicator& world, const std::string& path, const std::string& cut) {
  const Manifest manifest = read_manifest(path);
  std::vector<ParameterSpec> specs;
  for (const auto& entry : manifest.entries)
    if (entry.role == "parameter")
      specs.push_back(whole_parameter(entry.name, entry.name, entry.shape, Kind::weight, {}));
  const auto state = cut == "flat" ? flat(specs, world.rank(), world.size())
                                   : columns(specs, world.rank(), world.size());
  double needed = 0;
  for (const auto& entry : state)
    for (const auto& part : entry.parts) needed += static_cast<double>(part.local.nbytes());
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again
  const int64_t read_before = bytes_read(), memory_before = memory("VmRSS");
  world.barrier({"bench", "start"});
  const auto start = std::chrono::steady_clock::now();
  load_checkpoint(world, path, state);
  world.barrier({"bench", "end"});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double read = static_cast<double>(bytes_read() - read_before);
  const double extra = static_cast<double>(memory("VmHWM") - memory_before);
  const double ratio = largest(world, read / needed), most = largest(world, extra);
  if (world.rank() == 0)
    std::cout << "{\"benchmark\": \"reshard\", \"cut\": \"" << cut
              << "\", \"ranks\": " << world.size() << ", \"bytes_per_rank\": " << int64_t(needed)
              << ", \"seconds\": " << seconds << ", \"read_by_needed\": " << ratio
              << ", \"extra_memory_bytes\": " << int64_t(most) << "}\n";
}

void run(int argc, char** argv) {
  require(argc > 2, ExitCode::usage, "usage: reshard_bench save|load FOLDER [MEGABYTES]");
  const std::string mode = argv[1], folder = argv[2];
  const auto world = World::join(world_from_environment());
  std::vector<int> ranks(world->info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world->group("everyone", ranks);
  if (mode == "save") {
    const auto specs = specs_of(argc > 3 ? std::stoll(argv[3]) : 2048);
    save_checkpoint(*group, folder, {.step = 1}, flat(specs, group->rank(), group->size()), 1);
  } else {
    for (const char* cut : {"flat", "columns"}) load(*group, folder + "/step-1", cut);
  }
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) {
  try {
    phalanx::run(argc, argv);
    return 0;
  } catch (const phalanx::Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
