#include "phalanx/train/same_config.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/comm/signature.h"
#include "phalanx/config/keys.h"
#include "phalanx/config/write.h"

namespace phalanx {
namespace {

constexpr int64_t shown_bytes = 64;  // of a value

bool may_differ(const Key& key) {
  for (const char* name : {"model.path", "data.train", "data.validation", "train.threads"})
    if (key.full_name() == name) return true;
  return false;
}

std::string value_of(const Key& key, const Config& config) {
  return may_differ(key) ? "" : to_toml(key.get(config));
}

// One row per rank.
at::Tensor gather(Communicator& everyone, const at::Tensor& mine) {
  at::Tensor all = at::empty({everyone.size(), mine.numel()}, mine.options());
  const Handle handle = everyone.all_gather(all, mine, {"run", "config"});
  handle.wait();
  handle.wait_inputs();
  return all;
}

}  // namespace

void require_same_config(Communicator& everyone, const Config& config) {
  if (everyone.size() == 1) return;
  const int64_t count = int64_t(keys().size());
  at::Tensor mine = at::zeros({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i)
    mine.data_ptr<int64_t>()[i] = int64_t(hash_name(value_of(keys()[i], config)));
  const at::Tensor all = gather(everyone, mine);
  const int64_t* hashes = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i)
    for (int rank = 1; rank < everyone.size(); ++rank) {
      if (hashes[rank * count + i] == hashes[i]) continue;
      const Key& key = keys()[i];
      at::Tensor shown = at::zeros({shown_bytes}, at::kByte);
      std::strncpy(static_cast<char*>(shown.data_ptr()), value_of(key, config).c_str(),
                   shown_bytes - 1);
      const at::Tensor values = gather(everyone, shown);
      const auto value = [&](int of) {
        return static_cast<const char*>(values.const_data_ptr()) + of * shown_bytes;
      };
      fail(ExitCode::usage, "rank ", rank, " was started with ", key.full_name(), " = ",
           value(rank), " and rank 0 with ", value(0), "; give all ranks the same config");
    }
}

}  // namespace phalanx
