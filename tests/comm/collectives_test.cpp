#include <ATen/ATen.h>

#include <cmath>

#include "phalanx/comm/ledger.h"
#include "tests/comm/support.h"

namespace phalanx::testing {
namespace {

const at::ScalarType dtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                 at::kLong,   at::kInt,   at::kShort,    at::kByte};
const Call& call = test_call;

// What rank `rank` puts in, the same wherever it is computed.
at::Tensor input_of(int rank, int64_t count, at::ScalarType dtype, int salt = 0) {
  auto values = at::arange(count, at::kLong).mul(2654435761 + 97 * rank + 31 * salt);
  values = values.remainder(65521).remainder(251).add(rank);
  if (at::isFloatingType(dtype)) return values.to(at::kDouble).sub(120).div(7).to(dtype);
  return values.to(dtype);
}

// In rank order, in float32 for 16-bit types, by LibTorch's own operations.
at::Tensor expected_sum(const std::vector<at::Tensor>& inputs, Op op = Op::sum) {
  const auto dtype = inputs[0].scalar_type();
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  auto total = narrow ? inputs[0].to(at::kFloat) : inputs[0].clone();
  for (size_t i = 1; i < inputs.size(); ++i) {
    auto next = narrow ? inputs[i].to(at::kFloat) : inputs[i];
    total = op == Op::sum   ? at::add(total, next)
            : op == Op::max ? at::maximum(total, next)
                            : at::minimum(total, next);
  }
  return total.to(dtype);
}

void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  EXPECT_TRUE(at::equal(a, b)) << "got " << a.flatten().slice(0, 0, 8) << "\nexpected "
                               << b.flatten().slice(0, 0, 8);
}

at::Tensor symmetric(Communicator& group, int64_t count, at::ScalarType dtype) {
  return group.allocate(count * int64_t(at::elementSize(dtype))).view(dtype);
}

/// Whose tensors lie in memory of the communicator.
enum class Symmetric { none, of_odd_ranks, all };

at::Tensor new_tensor(Communicator& group, int64_t count, at::ScalarType dtype, Symmetric which) {
  const bool own =
      which == Symmetric::all || (which == Symmetric::of_odd_ranks && group.rank() % 2);
  const auto shared = which == Symmetric::none ? at::Tensor() : symmetric(group, count, dtype);
  return own ? shared : at::zeros({count}, dtype);
}

// Every collective on private and on symmetric tensors.
void check_all(Communicator& group, int64_t count, at::ScalarType dtype, Symmetric which) {
  const int size = group.size(), rank = group.rank();
  auto make = [&](int64_t elements) { return new_tensor(group, elements, dtype, which); };
  std::vector<at::Tensor> inputs, wholes;
  for (int other = 0; other < size; ++other) {
    inputs.push_back(input_of(other, count, dtype));
    wholes.push_back(input_of(other, count * size, dtype, 1));
  }
  {
    SCOPED_TRACE("all_gather");
    auto in = make(count), out = make(count * size);
    in.copy_(inputs[rank]);
    auto handle = group.all_gather(out, in, call);
    handle.wait();
    handle.wait_inputs();
    expect_same(out, at::cat(inputs));
    out.zero_();
    out.narrow(0, rank * count, count).copy_(inputs[rank]);
    auto in_place = group.all_gather(out, out.narrow(0, rank * count, count), call);
    in_place.wait();
    expect_same(out, at::cat(inputs));
    in_place.wait_inputs();
  }
  for (Op op : {Op::sum, Op::max, Op::min}) {
    SCOPED_TRACE("reduce_scatter " + std::to_string(int(op)));
    auto in = make(count * size), out = make(count);
    in.copy_(wholes[rank]);
    auto expected = expected_sum(wholes, op).narrow(0, rank * count, count);
    auto handle = group.reduce_scatter(out, in, op, call);
    handle.wait();
    expect_same(out, expected);
    handle.wait_inputs();
    if (op == Op::sum) {
      out.copy_(inputs[rank]);
      auto more = group.reduce_scatter(out, in, op, call, true);
      more.wait();
      more.wait_inputs();
      auto parts = std::vector<at::Tensor>();
      for (auto& whole : wholes) parts.push_back(whole.narrow(0, rank * count, count));
      const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
      if (narrow) {
        auto total = parts[0].to(at::kFloat);
        for (int i = 1; i < size; ++i) total = total + parts[i].to(at::kFloat);
        expect_same(out, (inputs[rank].to(at::kFloat) + total).to(dtype));
      } else {
        expect_same(out, inputs[rank] + expected_sum(parts));
      }
    }
    auto in_place = group.reduce_scatter(in.narrow(0, rank * count, count), in, op, call);
    in_place.wait();
    expect_same(in.narrow(0, rank * count, count), expected);
    in_place.wait_inputs();
  }
  for (Op op : {Op::sum, Op::max, Op::min}) {
    SCOPED_TRACE("all_reduce " + std::to_string(int(op)));
    auto inout = make(count);
    inout.copy_(inputs[rank]);
    group.all_reduce(inout, op, call).wait();
    expect_same(inout, expected_sum(inputs, op));
  }
  for (int root = 0; root < size; ++root) {
    SCOPED_TRACE("broadcast");
    auto inout = make(count);
    inout.copy_(inputs[rank]);
    auto handle = group.broadcast(inout, root, call);
    handle.wait();
    handle.wait_inputs();
    expect_same(inout, inputs[root]);
  }
  group.barrier(call);
}

void check_all_to_all(Communicator& group, int64_t scale, at::ScalarType dtype) {
  SCOPED_TRACE("all_to_all");
  const int size = group.size(), rank = group.rank();
  auto rows = [&](int from, int to) { return (from + 2 * to) % 3 * scale; };  // zeros among them
  std::vector<int64_t> in_splits, out_splits;
  std::vector<at::Tensor> in, expected;
  for (int other = 0; other < size; ++other) {
    in_splits.push_back(rows(rank, other));
    out_splits.push_back(rows(other, rank));
    in.push_back(input_of(rank, rows(rank, other) * 3, dtype, other).view({-1, 3}));
    expected.push_back(input_of(other, rows(other, rank) * 3, dtype, rank).view({-1, 3}));
  }
  auto input = at::cat(in), output = at::empty_like(at::cat(expected));
  auto handle = group.all_to_all(output, out_splits, input, in_splits, call);
  handle.wait();
  expect_same(output, at::cat(expected));
  handle.wait_inputs();
}

void check_messages(Communicator& group, int64_t count, at::ScalarType dtype, Symmetric which) {
  SCOPED_TRACE("send and receive");
  const int size = group.size(), rank = group.rank();
  const int next = (rank + 1) % size, before = (rank + size - 1) % size;
  std::vector<at::Tensor> out, in;
  std::vector<Handle> handles;
  for (int tag = 0; tag < 3; ++tag) {
    out.push_back(new_tensor(group, count, dtype, which));
    out.back().copy_(input_of(rank, count, dtype, tag));
    in.push_back(at::zeros({count}, dtype));
    handles.push_back(group.send(out.back(), next, tag, call));
  }
  for (int tag : {2, 0, 1}) group.receive(in[size_t(tag)], before, tag, call).wait();
  for (int tag = 0; tag < 3; ++tag)
    expect_same(in[size_t(tag)], input_of(before, count, dtype, tag));
  for (auto& handle : handles) handle.wait(), handle.wait_inputs();
}

// Both transports are compared with the same sums, bit for bit: so they agree with each other.
void check_matrix(int ranks, Transport transport) {
  SCOPED_TRACE(ranks);
  run_ranks(ranks,
            [transport](World& world) {
              auto group = world.group("all", all_ranks(world));
              EXPECT_EQ(group->transport(), world.info().size == 1         ? "single"
                                            : transport == Transport::gloo ? "gloo"
                                                                           : "shared memory");
              for (auto dtype : dtypes)
                for (int64_t count : {0, 1, 7, 1000, 30011, 400003})
                  for (auto which : {Symmetric::none, Symmetric::of_odd_ranks, Symmetric::all}) {
                    if (count > 100000 && dtype != at::kFloat) continue;
                    if (count == 30011 && dtype == at::kShort) continue;
                    if (which != Symmetric::none && transport == Transport::gloo) continue;
                    if (which == Symmetric::of_odd_ranks && dtype != at::kFloat) continue;
                    SCOPED_TRACE(std::string(c10::toString(dtype)) + " x " + std::to_string(count) +
                                 ", symmetric " + std::to_string(int(which)));
                    check_all(*group, count, dtype, which);
                    check_all_to_all(*group, count / 4, dtype);
                    if (group->size() > 1) check_messages(*group, count, dtype, which);
                  }
            },
            {.transport = transport, .deadline = std::chrono::seconds(120)});
}

TEST(Collectives, SharedMemory) {
  for (int ranks : {1, 2, 3, 4}) check_matrix(ranks, Transport::shared_memory);
}

TEST(Collectives, Gloo) {
  for (int ranks : {2, 3, 4}) check_matrix(ranks, Transport::gloo);
}

// Whichever rank has it, and whatever the others have.
TEST(Collectives, ANotANumberStaysInTheLargestAndTheSmallest) {
  run_ranks(3, [](World& world) {
    auto group = world.group("all", all_ranks(world));
    const int size = group->size(), rank = group->rank();
    const auto turn = at::arange(5000, at::kLong).remainder(2 * size);
    for (auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      for (Op op : {Op::max, Op::min}) {
        SCOPED_TRACE(text(c10::toString(dtype), op == Op::max ? " max" : " min"));
        auto values = at::full({5000}, double(rank), dtype);
        values.masked_fill_(turn.eq(rank), std::nan(""));
        group->all_reduce(values, op, call).wait();
        EXPECT_TRUE(at::equal(values.isnan(), turn.lt(size)));
        const double rest = op == Op::max ? size - 1 : 0;
        EXPECT_TRUE(
            at::equal(values.masked_fill(turn.lt(size), rest), at::full({5000}, rest, dtype)));
      }
  });
}

TEST(Collectives, WindowsCopyNothing) {
  for (int ranks : {2, 4})
    run_ranks(ranks, [](World& world) {
      auto group = world.group("all", all_ranks(world));
      const int size = group->size(), rank = group->rank();
      const int64_t count = 5000;
      auto window = group->allocate_window(count * 4).view(at::kFloat);
      EXPECT_EQ(window.abs().max().item<float>(), 0);
      group->barrier(call);
      auto mine = window.narrow(0, rank * count, count);
      for (int round = 0; round < 50; ++round) {
        mine.fill_(100 * round + rank);
        auto handle = group->all_gather(window, mine, call);
        handle.wait();
        for (int other = 0; other < size; ++other) {
          auto part = window.narrow(0, other * count, count);
          EXPECT_EQ(part.min().item<float>(), 100 * round + other);
          EXPECT_EQ(part.max().item<float>(), 100 * round + other);
        }
        handle.release();
        handle.wait_inputs();
      }
      EXPECT_EQ(world.ledger().bytes("all/parameters"), 50 * (size - 1) * count * 4);
    });
}

}  // namespace
}  // namespace phalanx::testing
