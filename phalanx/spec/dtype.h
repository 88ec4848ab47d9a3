#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

/// Element types, without LibTorch.
enum class Dtype : uint8_t {
  float64,
  float32,
  bfloat16,
  float16,
  int64,
  int32,
  int16,
  uint8,
  boolean,
};

/// What a type is called, and its size. A new one is a row of the table in dtype.cpp, and one of
/// that in device/dtype.cpp.
struct DtypeRow {
  Dtype dtype;
  const char* name;         ///< PyTorch's too; in config files and manifests: do not rename
  int64_t bytes;            ///< of an element
  const char* safetensors;  ///< in the header of such files
  const char* storage;      ///< in files of torch.save
};

const DtypeRow& row_of(Dtype dtype);
/// The type that `text` names in that column; none if it names none.
std::optional<Dtype> dtype_named(const char* DtypeRow::* column, std::string_view text);
/// All of a column, for messages.
std::vector<std::string> dtype_names(const char* DtypeRow::* column);

inline const char* name(Dtype dtype) { return row_of(dtype).name; }
inline int64_t size_of(Dtype dtype) { return row_of(dtype).bytes; }  ///< bytes per element
bool is_floating_point(Dtype dtype);

}  // namespace phalanx
