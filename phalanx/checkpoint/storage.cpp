#include "phalanx/checkpoint/storage.h"

#include <algorithm>

#include <charconv>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/folder_storage.h"
#include "phalanx/checkpoint/s3_storage.h"

namespace phalanx {

bool is_url(const std::string& where) { return where.find("://") != std::string::npos; }

std::unique_ptr<Storage> open_storage(const std::string& where) {
  require(!where.empty(), ExitCode::checkpoint,
          "the place of checkpoints is empty; give a folder or s3://bucket/prefix");
  if (where.starts_with("s3://")) return std::make_unique<S3Storage>(where);
  require(!is_url(where), ExitCode::checkpoint, where,
          " cannot be opened: checkpoints lie in folders or in s3://bucket/prefix");
  return std::make_unique<FolderStorage>(where);
}

std::string in_folder(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : name.empty() ? folder : folder + "/" + name;
}

bool is_plain_name(const std::string& file) {
  return !file.empty() && file.front() != '.' && file.find('/') == std::string::npos;
}

bool holds(const std::vector<Storage::Item>& items, const std::string& name, bool folder) {
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    return item.name == name && item.is_folder == folder;
  });
}

std::string read_text(const Storage& storage, const std::string& name, int64_t longest) {
  const auto file = storage.open(name);
  require(file->size() <= longest, ExitCode::checkpoint, file->path(), " has ", file->size(),
          " bytes; of such a file at most ", longest, " are read");
  std::string contents(file->size(), '\0');
  file->read(contents.data(), file->size(), 0);
  return contents;
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step-")) return std::nullopt;
  const char *begin = name.data() + 5, *end = name.data() + name.size();
  const auto number = [&end](const char* from, int64_t& value) -> const char* {
    if (from == end || *from < '0' || *from > '9') return nullptr;  // no sign
    const auto [next, error] = std::from_chars(from, end, value);
    return error == std::errc() ? next : nullptr;
  };
  int64_t step = 0, attempt = 0;
  const char* next = number(begin, step);
  if (next && next != end) next = *next == '-' ? number(next + 1, attempt) : nullptr;
  if (next != end) return std::nullopt;
  return step;
}

}  // namespace phalanx
