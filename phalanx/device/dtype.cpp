#include "phalanx/device/dtype.h"

#include <utility>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

constexpr std::pair<Dtype, at::ScalarType> types[] = {
    {Dtype::float64, at::kDouble}, {Dtype::float32, at::kFloat}, {Dtype::bfloat16, at::kBFloat16},
    {Dtype::float16, at::kHalf},   {Dtype::int64, at::kLong},    {Dtype::int32, at::kInt},
    {Dtype::int16, at::kShort},    {Dtype::uint8, at::kByte},    {Dtype::boolean, at::kBool}};

}  // namespace

at::ScalarType scalar_type(Dtype dtype) {
  for (const auto& [ours, theirs] : types)
    if (ours == dtype) return theirs;
  fail(ExitCode::usage, "no element type ", static_cast<int>(dtype));
}

Dtype dtype_of(const at::Tensor& tensor) {
  for (const auto& [ours, theirs] : types)
    if (theirs == tensor.scalar_type()) return ours;
  fail(ExitCode::usage, "tensors of type ", tensor.scalar_type(), " are not supported; use one of ",
       join(dtype_names(&DtypeRow::name)));
}

}  // namespace phalanx
