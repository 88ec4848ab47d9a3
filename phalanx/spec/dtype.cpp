#include "phalanx/spec/dtype.h"

#include <iterator>

namespace phalanx {
namespace {

constexpr DtypeRow rows[] = {
    {Dtype::float64, "float64", 8, "F64", "DoubleStorage"},
    {Dtype::float32, "float32", 4, "F32", "FloatStorage"},
    {Dtype::bfloat16, "bfloat16", 2, "BF16", "BFloat16Storage"},
    {Dtype::float16, "float16", 2, "F16", "HalfStorage"},
    {Dtype::int64, "int64", 8, "I64", "LongStorage"},
    {Dtype::int32, "int32", 4, "I32", "IntStorage"},
    {Dtype::int16, "int16", 2, "I16", "ShortStorage"},
    {Dtype::uint8, "uint8", 1, "U8", "ByteStorage"},
    {Dtype::boolean, "bool", 1, "BOOL", "BoolStorage"},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(rows); ++i)
    if (rows[i].dtype != static_cast<Dtype>(i)) return false;
  return true;
}
static_assert(in_order(), "a row's place is its type's number");

}  // namespace

const DtypeRow& row_of(Dtype dtype) {
  static constexpr DtypeRow none = {{}, "?", 0, "?", "?"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(rows) ? rows[index] : none;
}

std::optional<Dtype> dtype_named(const char* DtypeRow::* column, std::string_view text) {
  for (const DtypeRow& row : rows)
    if (text == row.*column) return row.dtype;
  return std::nullopt;
}

std::vector<std::string> dtype_names(const char* DtypeRow::* column) {
  std::vector<std::string> names;
  for (const DtypeRow& row : rows) names.emplace_back(row.*column);
  return names;
}

bool is_floating_point(Dtype dtype) {
  return dtype == Dtype::float64 || dtype == Dtype::float32 || dtype == Dtype::bfloat16 ||
         dtype == Dtype::float16;
}

}  // namespace phalanx
