#pragma once

#include <cstdint>

namespace phalanx {

/// Element types, without LibTorch. Names reach config files and manifests: do not rename.
enum class Dtype : uint8_t { float64, float32, bfloat16, float16, int64, int32, int16, uint8 };

const char* name(Dtype dtype);
int64_t size_of(Dtype dtype);  ///< bytes per element
bool is_floating_point(Dtype dtype);

}  // namespace phalanx
