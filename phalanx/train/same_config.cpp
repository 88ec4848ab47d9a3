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

// What each rank says, the end of it if it is long.
std::vector<std::string> gather_words(Communicator& everyone, std::string words) {
  constexpr size_t most = 256;
  if (words.size() > most) words = "..." + words.substr(words.size() - most + 3);
  at::Tensor mine = at::zeros({int64_t(most)}, at::kByte);
  std::memcpy(mine.data_ptr(), words.data(), words.size());
  const at::Tensor all = gather(everyone, mine);
  std::vector<std::string> said;
  for (int rank = 0; rank < everyone.size(); ++rank) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + rank * most;
    said.emplace_back(begin, strnlen(begin, most));
  }
  return said;
}

// The first rank whose element `column` is not rank 0's; 0 if there is none.
int different_rank(const at::Tensor& rows, int64_t column) {
  const int64_t* values = rows.const_data_ptr<int64_t>();
  for (int64_t rank = 1; rank < rows.size(0); ++rank)
    if (values[rank * rows.size(1) + column] != values[column]) return int(rank);
  return 0;
}

}  // namespace

void require_same_config(Communicator& everyone, const Config& config) {
  if (everyone.size() == 1) return;
  const int64_t count = int64_t(keys().size());
  at::Tensor mine = at::zeros({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i)
    mine.data_ptr<int64_t>()[i] = int64_t(hash_name(value_of(keys()[i], config)));
  const at::Tensor all = gather(everyone, mine);
  for (int64_t i = 0; i < count; ++i) {
    const int rank = different_rank(all, i);
    if (rank == 0) continue;
    const auto values = gather_words(everyone, value_of(keys()[i], config));
    fail(ExitCode::usage, "rank ", rank, " was started with ", keys()[i].full_name(), " = ",
         values[rank], " and rank 0 with ", values[0], "; give all ranks the same config");
  }
}

void require_same_data(Communicator& everyone, const std::string& key, const DataSet* data) {
  if (everyone.size() == 1) return;
  const std::vector<DataFile> files = data ? data->files() : std::vector<DataFile>();
  const int64_t count = int64_t(files.size());
  at::Tensor mine = at::zeros({1}, at::kLong);
  mine.data_ptr<int64_t>()[0] = count;
  const at::Tensor counts = gather(everyone, mine);
  if (const int rank = different_rank(counts, 0))
    fail(ExitCode::data, "rank ", rank, " has ", counts.const_data_ptr<int64_t>()[rank],
         " files in ", key, " and rank 0 ", counts.const_data_ptr<int64_t>()[0],
         "; give all ranks the same data");
  if (count == 0) return;
  mine = at::zeros({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) mine.data_ptr<int64_t>()[i] = int64_t(files[i].hash);
  const at::Tensor hashes = gather(everyone, mine);
  for (int64_t i = 0; i < count; ++i) {
    const int rank = different_rank(hashes, i);
    if (rank == 0) continue;
    const auto shown =
        gather_words(everyone, text(files[i].path, " (", files[i].tokens, " tokens)"));
    fail(ExitCode::data, "rank ", rank, " reads ", shown[rank], " in ", key, " where rank 0 reads ",
         shown[0], ", and their contents differ; give all ranks the same data in the same order");
  }
}

}  // namespace phalanx
