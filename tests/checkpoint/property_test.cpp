// Any layout into any other: random boxes on random numbers of ranks, by fixed seeds.
#include <gtest/gtest.h>

#include "phalanx/base/log.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/verify.h"
#include "phalanx/device/dtype.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ThreadRanks;

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % limit); }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  std::mt19937 random_;
};

struct Tensor {
  std::string name, role;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
};

// Floating types first.
constexpr at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                     at::kLong,  at::kInt,    at::kShort,    at::kByte};

// 0 to 4 dimensions; mostly small, so that dimensions are smaller than the ranks; some are empty.
std::vector<Tensor> draw_tensors(Draw& draw) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 6; ++i) {
    Tensor tensor{"t" + std::to_string(i), draw.one_in(3) ? "exp_avg" : "parameter", {}, {}};
    for (int64_t dims = draw.below(5); dims > 0; --dims)
      tensor.shape.push_back(draw.one_in(12) ? 0 : 1 + draw.below(draw.one_in(4) ? 40 : 5));
    tensor.dtype = dtypes[draw.below(8)];
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Which boxes of a tensor each rank holds.
using Cut = std::vector<std::vector<Box>>;

// Box `whole` over ranks [first, last): cut along a dimension (as tensor, expert and row-wise
// parallelism do), a flat range each (as FSDP does), replicated, or on one rank alone.
void draw_cut(Draw& draw, const Box& whole, int first, int last, Cut& cut) {
  const int ranks = last - first;
  const auto dims = static_cast<int64_t>(whole.size.size());
  if (ranks == 1 || draw.one_in(12)) {
    cut[first + draw.below(ranks)].push_back(whole);
    return;
  }
  const int64_t way = draw.below(dims == 0 ? 2 : 5);
  if (way == 0) {  // replicas
    for (int rank = first; rank < last; ++rank) cut[rank].push_back(whole);
    return;
  }
  if (way == 1) {  // flat and ragged
    const int64_t count = element_count(whole.size);
    std::vector<int64_t> edges = {0, count};
    for (int i = 1; i < ranks; ++i) edges.push_back(draw.below(count + 1));
    std::sort(edges.begin(), edges.end());
    for (int i = 0; i < ranks; ++i)
      for (Box box : boxes_of_range(whole.size, edges[i], edges[i + 1])) {
        for (int64_t dim = 0; dim < dims; ++dim) box.offset[dim] += whole.offset[dim];
        cut[first + i].push_back(std::move(box));
      }
    return;
  }
  const int64_t dim = draw.below(dims), edge = draw.below(whole.size[dim] + 1);
  const int middle = first + 1 + static_cast<int>(draw.below(ranks - 1));
  Box head = whole, tail = whole;
  head.size[dim] = edge;
  tail.offset[dim] += edge, tail.size[dim] -= edge;
  draw_cut(draw, head, first, middle, cut);
  draw_cut(draw, tail, middle, last, cut);
}

// Memory for a box: contiguous, inside of wider rows, or with the dimensions in reverse.
at::Tensor draw_memory(Draw& draw, std::vector<int64_t> size, at::ScalarType dtype) {
  const int64_t way = draw.below(3);
  if (way == 0 || size.empty()) return at::full(size, 7, dtype);
  if (way == 1) {
    size.back() += 3;
    return at::full(size, 7, dtype).narrow(-1, 1, size.back() - 3);
  }
  std::reverse(size.begin(), size.end());
  std::vector<int64_t> order;
  for (auto dim = static_cast<int64_t>(size.size()); dim-- > 0;) order.push_back(dim);
  return at::full(size, 7, dtype).permute(order);
}

// What every rank holds. Empty boxes are listed, or left out, or the tensor is.
std::vector<std::vector<StateEntry>> draw_state(Draw& draw, const std::vector<Tensor>& tensors,
                                                int ranks, bool filled) {
  std::vector<std::vector<StateEntry>> state(ranks);
  for (const Tensor& tensor : tensors) {
    Cut cut(ranks);
    draw_cut(draw, whole_box(tensor.shape), 0, ranks, cut);
    const at::Tensor whole =
        testing::expected(tensor.name, tensor.role, tensor.shape, tensor.dtype);
    for (int rank = 0; rank < ranks; ++rank) {
      StateEntry entry{tensor.name, tensor.role, dtype_of(whole), tensor.shape, {}};
      for (const Box& box : cut[rank]) {
        if (element_count(box.size) == 0 && draw.one_in(2)) continue;
        at::Tensor local = draw_memory(draw, box.size, tensor.dtype);
        if (filled) local.copy_(testing::view_of(whole, box));
        entry.parts.push_back({box, local});
      }
      // An empty tensor must be known to somebody.
      if (!entry.parts.empty() || rank == 0 || draw.one_in(2))
        state[rank].push_back(std::move(entry));
    }
  }
  return state;
}

void expect_none(const std::vector<std::string>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

TEST(Property, RandomMeshesIntoRandomMeshes) {
  set_log_level(LogLevel::warning);  // conversions are many
  const std::string folder = testing::temporary_folder();
  constexpr int counts[] = {1, 2, 3, 4, 6, 8};
  int64_t loaded = 0;
  const uint32_t seeds = std::getenv("PHALANX_SOAK") ? 1000 : 60;
  for (uint32_t seed = 1; seed <= seeds; ++seed) {
    Draw draw(seed);
    auto tensors = draw_tensors(draw);
    const int from = counts[draw.below(6)], to = counts[draw.below(6)];
    SCOPED_TRACE(text("seed ", seed, ", ", from, " ranks to ", to));
    const auto saved = draw_state(draw, tensors, from, true);
    std::string path;
    expect_none(ThreadRanks::run(from, [&](Communicator& world) {
      const auto written = save_checkpoint(world, folder, {.step = seed}, saved[world.rank()], 1);
      if (world.rank() == 0) path = written;
    }));
    ASSERT_FALSE(::testing::Test::HasFailure());
    for (Tensor& tensor : tensors)  // any floating type into any other; the values fit into all
      if (at::isFloatingType(tensor.dtype) && draw.one_in(2)) tensor.dtype = dtypes[draw.below(4)];
    const auto wanted = draw_state(draw, tensors, to, false);
    expect_none(ThreadRanks::run(to, [&](Communicator& world) {
      const auto& mine = wanted[world.rank()];
      load_checkpoint(world, path, mine, {.verify_hashes = seed % 4 == 0});
      const std::string wrong = testing::differences(mine);
      require(wrong.empty(), ExitCode::checkpoint, wrong);
    }));
    for (const auto& rank : wanted)
      for (const auto& entry : rank) loaded += static_cast<int64_t>(entry.parts.size());
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  EXPECT_GT(loaded, 1000);
  set_log_level(LogLevel::info);
}

}  // namespace
}  // namespace phalanx
