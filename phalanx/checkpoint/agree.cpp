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

}  // namespace

std::vector<std::string> all_gather_bytes(Communicator& world, const std::string& mine,
                                          std::string_view purpose) {
  const int ranks = world.size();
  const Call call{"checkpoint", purpose};
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

std::vector<std::string> agree(Communicator& world, std::string_view purpose,
                               const std::function<std::string()>& work) {
  auto all = all_gather_bytes(world, outcome(work), purpose);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto code = static_cast<ExitCode>(all[rank].front());
    all[rank].erase(0, 1);
    if (code != ExitCode::done)
      fail(code, all.size() > 1 ? text("rank ", rank, ": ") : "", all[rank]);
  }
  return all;
}

}  // namespace phalanx
