#include "phalanx/checkpoint/agree.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

// The first byte of what a rank tells the others: 0 and its result, or an exit code and a sentence.
std::string outcome(const std::function<std::string()>& work) {
  const auto failed = [](ExitCode code, const std::string& sentence) {
    return std::string(1, static_cast<char>(code)) + sentence;
  };
  try {
    return std::string(1, '\0') + work();
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const c10::Error& error) {
    return failed(ExitCode::checkpoint, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(ExitCode::checkpoint, error.what());
  }
}

// Every rank's bytes, on every rank, in rank order.
std::vector<std::string> all_gather_bytes(Communicator& world, const std::string& mine,
                                          const Call& call) {
  const int ranks = world.size();
  at::Tensor sizes = at::empty({ranks}, at::kLong);
  world.all_gather(sizes, at::full({1}, static_cast<int64_t>(mine.size()), at::kLong), call).wait();
  const int64_t longest = sizes.max().item<int64_t>();
  std::vector<std::string> all(ranks);
  if (longest == 0) return all;
  at::Tensor in = at::zeros({longest}, at::kByte), out = at::empty({ranks * longest}, at::kByte);
  std::memcpy(in.data_ptr(), mine.data(), mine.size());
  Handle handle = world.all_gather(out, in, call);
  handle.wait();
  for (int rank = 0; rank < ranks; ++rank)
    all[rank].assign(out.data_ptr<uint8_t>() + rank * longest,
                     out.data_ptr<uint8_t>() + rank * longest + sizes[rank].item<int64_t>());
  handle.wait_inputs();
  return all;
}

// The result in an outcome; its error, if it has one, with the rank's number.
void take_result(std::string& outcome, int rank, int ranks) {
  const auto code = static_cast<ExitCode>(outcome.front());
  outcome.erase(0, 1);
  if (code != ExitCode::done) fail(code, ranks > 1 ? text("rank ", rank, ": ") : "", outcome);
}

void broadcast_from_first(Communicator& world, const at::Tensor& tensor, const Call& call) {
  const Handle handle = world.broadcast(tensor, 0, call);
  handle.wait();
  handle.wait_inputs();
}

}  // namespace

std::vector<std::string> agree(Communicator& world, std::string_view purpose,
                               const std::function<std::string()>& work,
                               std::chrono::milliseconds deadline) {
  auto all = all_gather_bytes(world, outcome(work), {"checkpoint", purpose, deadline});
  for (size_t rank = 0; rank < all.size(); ++rank)
    take_result(all[rank], static_cast<int>(rank), world.size());
  return all;
}

std::string agree_with_first(Communicator& world, std::string_view purpose,
                             const std::function<std::string()>& work,
                             std::chrono::milliseconds deadline) {
  const Call call{"checkpoint", purpose, deadline};
  std::string told;
  if (world.rank() == 0) told = outcome(work);
  const at::Tensor size = at::full({1}, static_cast<int64_t>(told.size()), at::kLong);
  broadcast_from_first(world, size, call);
  const at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (world.rank() == 0) std::memcpy(bytes.data_ptr(), told.data(), told.size());
  broadcast_from_first(world, bytes, call);
  told.assign(bytes.const_data_ptr<uint8_t>(), bytes.const_data_ptr<uint8_t>() + bytes.numel());
  take_result(told, 0, world.size());
  return told;
}

}  // namespace phalanx
