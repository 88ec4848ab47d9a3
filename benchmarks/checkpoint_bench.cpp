// Checkpoints beside the bare disk: saving beside sequential writes and fsync of as many bytes,
// loading beside sequential reads, the step that saves in the background beside a bare copy.
//
//  phalanx run --nproc-per-node 2 -- build/checkpoint_bench save FOLDER [--megabytes N] [--pairs N]
//  phalanx run --nproc-per-node 4 -- build/checkpoint_bench load FOLDER [--pairs N]
//
// `save` leaves FOLDER/step-1 for `load`, which any number of ranks may run. Every rank of the bare
// disk writes (reads) its share of the bytes in a file of its own, 8 MiB at a time. Before each
// read the files' pages leave the page cache. Each is done once before it is timed; which of a pair
// goes first alternates, from pair --first on. One JSON line per pair; times are those of the
// slowest rank, in seconds.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <numeric>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/comm/world.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t width = 4096, block = 8 << 20;

struct Options {
  std::string mode, folder;
  int64_t megabytes = 2048;  // of all ranks
  int first = 0, pairs = 7;  // which of the pairs are taken: the order alternates
};

Options parse(int argc, char** argv) {
  Options options;
  require(argc >= 3, ExitCode::usage,
          "usage: checkpoint_bench save|load FOLDER [--megabytes N] [--pairs N] [--first N]");
  options.mode = argv[1], options.folder = argv[2];
  for (int i = 3; i + 1 < argc; i += 2)
    if (std::strcmp(argv[i], "--megabytes") == 0)
      options.megabytes = std::stoll(argv[i + 1]);
    else if (std::strcmp(argv[i], "--pairs") == 0)
      options.pairs = std::stoi(argv[i + 1]);
    else if (std::strcmp(argv[i], "--first") == 0)
      options.first = std::stoi(argv[i + 1]);
    else
      fail(ExitCode::usage, argv[i], " is no option of checkpoint_bench");
  return options;
}

// Weights of 64 MB and biases of 16 KB, cut in rows over the ranks.
std::vector<StateEntry> make_state(const Communicator& world, int64_t megabytes) {
  std::vector<StateEntry> state;
  const int ranks = world.size();
  for (int64_t i = 0; i < std::max<int64_t>(1, megabytes / 64); ++i)
    for (const auto& shape : {std::vector<int64_t>{width, width}, {width}}) {
      const std::string name = text("layers.", i, shape.size() == 2 ? ".weight" : ".bias");
      const int64_t begin = shape[0] * world.rank() / ranks,
                    end = shape[0] * (world.rank() + 1) / ranks;
      Box box{std::vector<int64_t>(shape.size()), shape};
      box.offset[0] = begin, box.size[0] = end - begin;
      const at::Tensor local = at::full(box.size, double(i + world.rank()), at::kFloat);
      state.push_back({name, "parameter", Dtype::float32, shape, {{box, local}}});
    }
  return state;
}

int64_t bytes_of(const std::vector<StateEntry>& state) {
  int64_t sum = 0;
  for (const auto& entry : state)
    for (const auto& part : entry.parts) sum += static_cast<int64_t>(part.local.nbytes());
  return sum;
}

class Bench {
 public:
  Bench(World& world, Options options) : options_(std::move(options)) {
    std::vector<int> ranks(world.info().size);
    std::iota(ranks.begin(), ranks.end(), 0);
    group_ = world.group("world", ranks);
    fs::create_directories(options_.folder);
  }

  void save() {
    const auto state = make_state(*group_, options_.megabytes);
    const at::Tensor bare = at::full({bytes_of(state)}, 1, at::kByte);
    const auto ours = [&] { save_checkpoint(*group_, options_.folder, {.step = 1}, state, 1); };
    const auto plain = [&] { write_plain(bare); };
    Checkpointer checkpointer(*group_, options_.folder + "/async", {.keep = 1, .async = true});
    at::Tensor copy = at::empty_like(bare);
    const auto background = [&] { checkpointer.save({.step = 1}, state); };
    const auto copied = [&] {
      std::memcpy(copy.mutable_data_ptr(), bare.const_data_ptr(), bare.nbytes());
    };
    checkpointer.prepare(state), copied(), ours(), plain();  // pages of all buffers
    for (int pair = options_.first; pair < options_.first + options_.pairs; ++pair) {
      const auto [save_s, write_s] = in_turns(pair, ours, plain);
      report({{"save_s", save_s}, {"write_s", write_s}, {"of_write", write_s / save_s}});
      const auto [step_s, copy_s] = in_turns(pair, background, copied);
      checkpointer.finish();
      report({{"async_step_s", step_s}, {"copy_s", copy_s}, {"of_copy", step_s / copy_s}});
    }
  }

  void load() {
    const std::string path = options_.folder + "/step-1";
    const auto saved = read_manifest(path);
    options_.megabytes = 0;
    for (const auto& entry : saved.entries) options_.megabytes += entry.shape.size() == 2 ? 64 : 0;
    const auto state = make_state(*group_, options_.megabytes);
    at::Tensor bare = at::full({bytes_of(state)}, 1, at::kByte);
    write_plain(bare);
    const auto ours = [&] { load_checkpoint(*group_, path, state); };
    const auto plain = [&] { read_plain(bare); };
    ours(), plain();  // as in save()
    for (int pair = options_.first; pair < options_.first + options_.pairs; ++pair) {
      const auto [load_s, read_s] = in_turns(pair, ours, plain);
      report({{"load_s", load_s}, {"read_s", read_s}, {"of_read", read_s / load_s}});
    }
  }

 private:
  std::string plain_file() const { return text(options_.folder, "/plain-", group_->rank()); }

  void write_plain(const at::Tensor& bytes) {
    const int file = open(plain_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const char* from = static_cast<const char*>(bytes.const_data_ptr());
    const auto total = static_cast<int64_t>(bytes.nbytes());
    bool good = file >= 0;
    for (int64_t done = 0; good && done < total; done += block) {
      const auto count = static_cast<size_t>(std::min(block, total - done));
      good = ::write(file, from + done, count) == static_cast<ssize_t>(count);
    }
    good = good && fsync(file) == 0;
    close(file);
    require(good, ExitCode::environment, "cannot write ", plain_file(), ": ", std::strerror(errno));
  }

  void read_plain(at::Tensor& bytes) {
    const InputFile file(plain_file(), ExitCode::environment);
    char* to = static_cast<char*>(bytes.mutable_data_ptr());
    for (int64_t done = 0; done < file.size(); done += block)
      file.read(to + done, std::min(block, file.size() - done), done);
  }

  // Both once, in an order that alternates; seconds of the slowest rank.
  std::pair<double, double> in_turns(int pair, const std::function<void()>& first,
                                     const std::function<void()>& second) {
    double seconds[2];
    for (int turn : {pair % 2, 1 - pair % 2}) {
      drop_pages();
      group_->barrier({"begin", "bench"});
      const auto begin = Clock::now();
      (turn == 0 ? first : second)();
      const double mine = std::chrono::duration<double>(Clock::now() - begin).count();
      at::Tensor slowest = at::full({1}, mine, at::kDouble);
      group_->all_reduce(slowest, Op::max, {"end", "bench"}).wait();
      seconds[turn] = *slowest.const_data_ptr<double>();
    }
    return {seconds[0], seconds[1]};
  }

  void drop_pages() {
    group_->barrier({"drop", "bench"});
    if (group_->rank() != 0) return;
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder))
      if (entry.is_regular_file()) drop_cached_pages(entry.path().string());
  }

  void report(const std::vector<std::pair<const char*, double>>& fields) {
    if (group_->rank() != 0) return;
    std::cout << "{\"mode\": \"" << options_.mode << "\", \"ranks\": " << group_->size()
              << ", \"megabytes\": " << options_.megabytes;
    for (const auto& [name, value] : fields) std::cout << ", \"" << name << "\": " << value;
    std::cout << "}" << std::endl;
  }

  Options options_;
  std::unique_ptr<Communicator> group_;
};

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) try {
  using namespace phalanx;
  const Options options = parse(argc, argv);
  require(options.mode == "save" || options.mode == "load", ExitCode::usage, "'", options.mode,
          "' is neither save nor load");
  auto world = World::join(world_from_environment());
  Bench bench(*world, options);
  options.mode == "save" ? bench.save() : bench.load();
  return 0;
} catch (const phalanx::Error& error) {
  std::cerr << "checkpoint_bench: " << error.what() << "\n";
  return static_cast<int>(error.code());
}
