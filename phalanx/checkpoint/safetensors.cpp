#include "phalanx/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

using nlohmann::json;

// A good file all the same: an error without "damaged".
struct UnreadType {
  std::string sentence;
};

Dtype safetensors_dtype(const std::string& tensor, const std::string& name) {
  const auto known = dtype_named(&DtypeRow::safetensors, name);
  if (!known)
    throw UnreadType{text("tensor ", tensor, " holds elements of type ", name, "; ",
                          join(dtype_names(&DtypeRow::safetensors)), " are read")};
  return *known;
}

// A tensor whose type may be unknown is only asked for its place.
TensorInfo parse_tensor(const std::string& name, const json& fields, int64_t data_begin,
                        int64_t data_bytes, bool skipped) {
  TensorInfo info;
  info.name = name;
  if (!skipped) info.dtype = safetensors_dtype(name, fields.at("dtype").get<std::string>());
  info.shape = fields.at("shape").get<std::vector<int64_t>>();
  const auto offsets = fields.at("data_offsets").get<std::vector<int64_t>>();
  int64_t bytes = size_of(info.dtype);
  bool possible = offsets.size() == 2 && 0 <= offsets[0] && offsets[0] <= offsets[1] &&
                  offsets[1] <= data_bytes;
  for (int64_t size : info.shape)
    possible = possible && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
  if (possible && skipped) bytes = offsets[1] - offsets[0];
  require(possible && offsets[1] - offsets[0] == bytes, ExitCode::checkpoint, "tensor ", name,
          " of shape [", join(info.shape), "] has data_offsets [", join(offsets), "] in ",
          data_bytes, " bytes of data");
  info.offset = data_begin + offsets[0];
  info.bytes = bytes;
  return info;
}

}  // namespace

std::string safetensors_header(std::vector<TensorInfo>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  int64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    header[tensor.name] = {{"dtype", row_of(tensor.dtype).safetensors},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + tensor.bytes}}};
    tensor.offset = end;
    end += tensor.bytes;
  }
  std::string json_text = header.dump();
  json_text.resize((json_text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = json_text.size();
  for (TensorInfo& tensor : tensors) tensor.offset += static_cast<int64_t>(8 + length);
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json_text;
}

void wide_first(std::vector<TensorInfo>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
}

std::string foreign_content(std::string_view head) {
  if (head.empty()) return "empty: its copy or download did not happen";
  if (head.starts_with("version https://git-lfs")) {
    const size_t at = head.find("\nsize ");
    std::string size;
    if (at != std::string_view::npos)
      size = text(" of ", head.substr(at + 6, head.find('\n', at + 6) - at - 6), " bytes");
    return text("a Git LFS pointer: the real file", size,
                " was not downloaded (git lfs pull fetches it)");
  }
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && head[first] == '<')
    return "an HTML page (a login or an error) in place of the file: download it again";
  return "";
}

namespace {

// The length of the header, which its first 8 bytes tell.
int64_t header_length(const Reader& file) {
  constexpr uint64_t longest = 100'000'000;
  std::string head(std::min<int64_t>(file.size(), 512), '\0');
  file.read(head.data(), static_cast<int64_t>(head.size()), 0);
  const std::string kind = foreign_content(head);
  require(kind.empty(), ExitCode::checkpoint, file.path(), " is ", kind);
  require(file.size() >= 8, ExitCode::checkpoint, file.path(), " has ", file.size(),
          " bytes: it is no safetensors file, or was cut");
  uint64_t length = 0;
  std::memcpy(&length, head.data(), 8);
  require(length <= longest && static_cast<int64_t>(length) <= file.size() - 8,
          ExitCode::checkpoint, file.path(), " is damaged: its header claims ", length,
          " bytes, the file has ", file.size());
  return static_cast<int64_t>(length);
}

// In the order of the data, without gaps, to the end of the file.
void check_places(const Reader& file, const std::vector<TensorInfo>& tensors, int64_t begin) {
  int64_t end = begin;
  for (const TensorInfo& tensor : tensors) {
    require(tensor.offset == end, ExitCode::checkpoint, file.path(), " is damaged: tensor ",
            tensor.name, " begins at byte ", tensor.offset, ", expected at ", end);
    end += tensor.bytes;
  }
  require(end == file.size(), ExitCode::checkpoint, file.path(), " is damaged: its tensors end at ",
          end, ", the file at ", file.size(), ", ", file.size() - end, " bytes too many");
}

}  // namespace

std::vector<TensorInfo> read_safetensors_header(
    const Reader& file, const std::function<bool(const std::string& name)>& skip) {
  const int64_t length = header_length(file), data_begin = 8 + length;
  std::string header(length, '\0');
  file.read(header.data(), length, 8);
  const auto skipped = [&](const std::string& name) { return skip && skip(name); };
  std::vector<TensorInfo> tensors;
  try {
    const json parsed = json::parse(header);
    for (const auto& [name, fields] : parsed.items())
      if (name != "__metadata__")
        tensors.push_back(
            parse_tensor(name, fields, data_begin, file.size() - data_begin, skipped(name)));
  } catch (const UnreadType& unread) {
    fail(ExitCode::checkpoint, file.path(), ": ", unread.sentence);
  } catch (const std::exception& error) {
    fail(ExitCode::checkpoint, file.path(), " is damaged: ", error.what());
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  check_places(file, tensors, data_begin);
  std::erase_if(tensors, [&](const auto& tensor) { return skipped(tensor.name); });
  return tensors;
}

}  // namespace phalanx
