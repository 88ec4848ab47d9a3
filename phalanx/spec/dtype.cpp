#include "phalanx/spec/dtype.h"

namespace phalanx {

const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
      return "float64";
    case Dtype::float32:
      return "float32";
    case Dtype::bfloat16:
      return "bfloat16";
    case Dtype::float16:
      return "float16";
    case Dtype::int64:
      return "int64";
    case Dtype::int32:
      return "int32";
    case Dtype::int16:
      return "int16";
    case Dtype::uint8:
      return "uint8";
  }
  return "?";
}

int64_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::float64:
    case Dtype::int64:
      return 8;
    case Dtype::float32:
    case Dtype::int32:
      return 4;
    case Dtype::bfloat16:
    case Dtype::float16:
    case Dtype::int16:
      return 2;
    case Dtype::uint8:
      return 1;
  }
  return 0;
}

bool is_floating_point(Dtype dtype) {
  return dtype == Dtype::float64 || dtype == Dtype::float32 || dtype == Dtype::bfloat16 ||
         dtype == Dtype::float16;
}

}  // namespace phalanx
