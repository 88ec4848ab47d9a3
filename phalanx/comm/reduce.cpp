#include "phalanx/comm/reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

// A block of accumulators stays in the first-level cache; every input is read once.
constexpr int64_t block = 1024;

// Integers wrap as unsigned numbers do: signed overflow would be undefined.
template <class T, bool integer = std::is_integral_v<T>>
struct AccumulatorOf {
  using type = T;
};
template <class T>
struct AccumulatorOf<T, true> {
  using type = std::make_unsigned_t<T>;
};
template <>
struct AccumulatorOf<c10::BFloat16, false> {
  using type = float;
};
template <>
struct AccumulatorOf<c10::Half, false> {
  using type = float;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

inline float bfloat16_to_float(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// Round to nearest, ties to even; written without branches so that it vectorises.
inline uint16_t float_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return uint16_t(value != value ? 0x7fc0u : rounded);
}

template <class T>
inline Accumulator<T> load(const T& value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    return bfloat16_to_float(value.x);
  else
    return static_cast<Accumulator<T>>(value);
}

template <class T>
inline void store(T& to, Accumulator<T> value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    to.x = float_to_bfloat16(value);
  else
    to = static_cast<T>(value);
}

template <Op op, class T>
inline Accumulator<T> combine(Accumulator<T> a, Accumulator<T> b) {
  if constexpr (op == Op::sum) return Accumulator<T>(a + b);
  if constexpr (std::is_integral_v<T>) {
    if constexpr (op == Op::max) return T(a) < T(b) ? b : a;
    return T(b) < T(a) ? b : a;
  } else {  // a NaN on any side stays
    if constexpr (op == Op::max) return (a < b || b != b) ? b : a;
    return (b < a || b != b) ? b : a;
  }
}

template <class T, Op op>
[[gnu::always_inline]] inline void reduce_blocks(T* out, const T* const* inputs, int input_count,
                                                 int64_t elements, bool accumulate) {
  alignas(64) Accumulator<T> total[block];
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t count = std::min(block, elements - begin);
    const T* first = inputs[0] + begin;
    for (int64_t i = 0; i < count; ++i) total[i] = load(first[i]);
    for (int k = 1; k < input_count; ++k) {
      const T* next = inputs[k] + begin;
      for (int64_t i = 0; i < count; ++i) total[i] = combine<op, T>(total[i], load(next[i]));
    }
    T* to = out + begin;
    if (accumulate)
      for (int64_t i = 0; i < count; ++i) store(to[i], combine<op, T>(load(to[i]), total[i]));
    else
      for (int64_t i = 0; i < count; ++i) store(to[i], total[i]);
  }
}

template <class T, Op op>
[[gnu::target("avx2")]] void reduce_avx2(T* out, const T* const* inputs, int input_count,
                                         int64_t elements, bool accumulate) {
  reduce_blocks<T, op>(out, inputs, input_count, elements, accumulate);
}

template <class T, Op op>
void reduce_plain(T* out, const T* const* inputs, int input_count, int64_t elements,
                  bool accumulate) {
  reduce_blocks<T, op>(out, inputs, input_count, elements, accumulate);
}

// float16 has conversion instructions, but compilers do not find them in c10's arithmetic.
[[gnu::target("avx2,f16c")]] void widen(float* to, const c10::Half* from, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_store_ps(to + i,
                    _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i].x);
}

template <Op op>
[[gnu::target("avx2,f16c")]] void reduce_half(c10::Half* out, const c10::Half* const* inputs,
                                              int input_count, int64_t elements, bool accumulate) {
  alignas(64) float total[block], next[block];
  for (int64_t begin = 0; begin < elements; begin += block) {
    const int64_t count = std::min(block, elements - begin);
    widen(total, inputs[0] + begin, count);
    for (int k = 1; k < input_count; ++k) {
      widen(next, inputs[k] + begin, count);
      for (int64_t i = 0; i < count; ++i) total[i] = combine<op, float>(total[i], next[i]);
    }
    c10::Half* to = out + begin;
    if (accumulate) {
      widen(next, to, count);
      for (int64_t i = 0; i < count; ++i) total[i] = combine<op, float>(next[i], total[i]);
    }
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                       _mm256_cvtps_ph(_mm256_load_ps(total + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < count; ++i) to[i].x = _cvtss_sh(total[i], _MM_FROUND_TO_NEAREST_INT);
  }
}

template <class T, Op op>
void reduce_typed(void* out, const void* const* inputs, int input_count, int64_t elements,
                  bool accumulate) {
  static const bool avx2 = __builtin_cpu_supports("avx2"), f16c = __builtin_cpu_supports("f16c");
  auto* to = static_cast<T*>(out);
  auto* from = reinterpret_cast<const T* const*>(inputs);
  if constexpr (std::is_same_v<T, c10::Half>)
    if (avx2 && f16c) return reduce_half<op>(to, from, input_count, elements, accumulate);
  if (avx2)
    reduce_avx2<T, op>(to, from, input_count, elements, accumulate);
  else
    reduce_plain<T, op>(to, from, input_count, elements, accumulate);
}

template <class T>
void reduce_op(void* out, const void* const* inputs, int input_count, int64_t elements, Op op,
               bool accumulate) {
  switch (op) {
    case Op::sum:
      return reduce_typed<T, Op::sum>(out, inputs, input_count, elements, accumulate);
    case Op::max:
      return reduce_typed<T, Op::max>(out, inputs, input_count, elements, accumulate);
    case Op::min:
      return reduce_typed<T, Op::min>(out, inputs, input_count, elements, accumulate);
  }
}

}  // namespace

bool can_reduce(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf:
    case at::kLong:
    case at::kInt:
    case at::kShort:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

void reduce(void* out, const void* const* inputs, int input_count, int64_t elements,
            at::ScalarType dtype, Op op, bool accumulate) {
  switch (dtype) {
    case at::kDouble:
      return reduce_op<double>(out, inputs, input_count, elements, op, accumulate);
    case at::kFloat:
      return reduce_op<float>(out, inputs, input_count, elements, op, accumulate);
    case at::kBFloat16:
      return reduce_op<c10::BFloat16>(out, inputs, input_count, elements, op, accumulate);
    case at::kHalf:
      return reduce_op<c10::Half>(out, inputs, input_count, elements, op, accumulate);
    case at::kLong:
      return reduce_op<int64_t>(out, inputs, input_count, elements, op, accumulate);
    case at::kInt:
      return reduce_op<int32_t>(out, inputs, input_count, elements, op, accumulate);
    case at::kShort:
      return reduce_op<int16_t>(out, inputs, input_count, elements, op, accumulate);
    case at::kByte:
      return reduce_op<uint8_t>(out, inputs, input_count, elements, op, accumulate);
    default:
      fail(ExitCode::usage, "cannot reduce tensors of ", c10::toString(dtype),
           "; convert them first to ", reducible);
  }
}

}  // namespace phalanx
