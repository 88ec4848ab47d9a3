#include "phalanx/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

using nlohmann::json;

constexpr std::pair<Dtype, const char*> dtype_names[] = {
    {Dtype::float64, "F64"}, {Dtype::float32, "F32"}, {Dtype::bfloat16, "BF16"},
    {Dtype::float16, "F16"}, {Dtype::int64, "I64"},   {Dtype::int32, "I32"},
    {Dtype::int16, "I16"},   {Dtype::uint8, "U8"}};

const char* safetensors_name(Dtype dtype) {
  for (auto [known, name] : dtype_names)
    if (known == dtype) return name;
  return "?";
}

Dtype safetensors_dtype(const std::string& name) {
  for (auto [known, known_name] : dtype_names)
    if (name == known_name) return known;
  fail(ExitCode::checkpoint, "element type ", name, " is not supported");
}

TensorInfo parse_tensor(const std::string& name, const json& fields, int64_t data_begin,
                        int64_t data_bytes) {
  TensorInfo info;
  info.name = name;
  info.dtype = safetensors_dtype(fields.at("dtype").get<std::string>());
  info.shape = fields.at("shape").get<std::vector<int64_t>>();
  const auto offsets = fields.at("data_offsets").get<std::vector<int64_t>>();
  int64_t bytes = size_of(info.dtype);
  bool possible = offsets.size() == 2 && 0 <= offsets[0] && offsets[0] <= offsets[1] &&
                  offsets[1] <= data_bytes;
  for (int64_t size : info.shape)
    possible = possible && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
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
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
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

std::vector<TensorInfo> read_safetensors_header(const Reader& file) {
  constexpr uint64_t longest = 100'000'000;
  uint64_t length = 0;
  require(file.size() >= 8, ExitCode::checkpoint, file.path(), " has ", file.size(),
          " bytes: it is no safetensors file, or was cut");
  file.read(&length, 8, 0);
  require(length <= longest && static_cast<int64_t>(length) <= file.size() - 8,
          ExitCode::checkpoint, file.path(), " is damaged: its header claims ", length,
          " bytes, the file has ", file.size());
  std::string header(length, '\0');
  file.read(header.data(), static_cast<int64_t>(length), 8);
  const int64_t data_begin = static_cast<int64_t>(8 + length);
  std::vector<TensorInfo> tensors;
  try {
    const json parsed = json::parse(header);
    for (const auto& [name, fields] : parsed.items())
      if (name != "__metadata__")
        tensors.push_back(parse_tensor(name, fields, data_begin, file.size() - data_begin));
  } catch (const std::exception& error) {
    fail(ExitCode::checkpoint, file.path(), " is damaged: ", error.what());
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = data_begin;
  for (const TensorInfo& tensor : tensors) {
    require(tensor.offset == end, ExitCode::checkpoint, file.path(), " is damaged: tensor ",
            tensor.name, " begins at byte ", tensor.offset, ", expected at ", end);
    end += tensor.bytes;
  }
  require(end == file.size(), ExitCode::checkpoint, file.path(), " is damaged: its tensors end at ",
          end, ", the file at ", file.size());
  return tensors;
}

}  // namespace phalanx
