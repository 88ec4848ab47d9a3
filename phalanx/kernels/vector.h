#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

/// 64 bytes of float or double as one value. Everything here is inlined into the caller and
/// compiled for the caller's instruction set (base/vectorize.h). Vectors pass by reference because
/// their calling convention depends on the instruction set.
namespace phalanx::kernels {

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float Type __attribute__((vector_size(64)));
  typedef uint32_t Bits __attribute__((vector_size(64)));
};
template <>
struct VectorOf<double> {
  typedef double Type __attribute__((vector_size(64)));
  typedef uint64_t Bits __attribute__((vector_size(64)));
};
template <class T>
using Vector = typename VectorOf<T>::Type;
template <class T>
constexpr int64_t width = 64 / sizeof(T);

/// How much of a vector counts: all of it, or the first `int64_t` lanes at the end of a row.
struct AllLanes {};

template <class T>
[[gnu::always_inline]] inline void load(Vector<T>& v, const T* from, AllLanes = {}, T = 0) {
  __builtin_memcpy(&v, from, sizeof(v));
}
template <class T>
[[gnu::always_inline]] inline void load(Vector<T>& v, const T* from, int64_t lanes, T fill = 0) {
  for (int64_t i = 0; i < width<T>; ++i) v[i] = i < lanes ? from[i] : fill;
}

template <class T>
[[gnu::always_inline]] inline void store(T* to, const Vector<T>& v, AllLanes = {}) {
  __builtin_memcpy(to, &v, sizeof(v));
}
template <class T>
[[gnu::always_inline]] inline void store(T* to, const Vector<T>& v, int64_t lanes) {
  for (int64_t i = 0; i < lanes; ++i) to[i] = v[i];
}

/// Calls `body(i, AllLanes{})` for each whole vector of [0, count), then `body(i, lanes)` for what
/// is left.
template <class T, class Body>
[[gnu::always_inline]] inline void for_vectors(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + width<T> <= count; i += width<T>) body(i, AllLanes{});
  if (i < count) body(i, count - i);
}

template <class T>
[[gnu::always_inline]] inline T sum_of(const Vector<T>& v) {
  T part[width<T>];
  __builtin_memcpy(part, &v, sizeof(v));
  for (int64_t half = width<T> / 2; half >= 1; half /= 2)
    for (int64_t i = 0; i < half; ++i) part[i] += part[i + half];
  return part[0];
}

/// e^x. float: a polynomial on [-ln 2 / 2, ln 2 / 2] and an exponent, within 2 units in the last
/// place, 0 for x < -86.98 (results below 1.7e-38); NaN stays NaN.
[[gnu::always_inline]] inline void exponential(Vector<float>& result, const Vector<float>& x) {
  using V = Vector<float>;
  using B = VectorOf<float>::Bits;
  const V low = V{} - 86.98f, high = V{} + 88.72283f;
  V clamped = x < low ? low : x;
  clamped = clamped > high ? high : clamped;
  const V magic = V{} + 0x1.8p23f;
  const V shifted = clamped * 1.44269504f + magic;
  const V k = shifted - magic;
  V r = clamped - k * 0.693359375f;
  r = r + k * 2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;  // minimax coefficients of Cephes' expf
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^k in two steps, because k may be 128; from -125 on 2^(k - 1) is a normal number.
  B exponent;
  __builtin_memcpy(&exponent, &shifted, sizeof(exponent));
  exponent = (exponent << 23) + ((127 - 1) << 23);
  V power;
  __builtin_memcpy(&power, &exponent, sizeof(power));
  p = p * power * 2.0f;
  p = x < low ? V{} : p;
  result = x > high ? V{} + std::numeric_limits<float>::infinity() : p;
}

[[gnu::always_inline]] inline void exponential(Vector<double>& result, const Vector<double>& x) {
  for (int64_t i = 0; i < width<double>; ++i) result[i] = std::exp(x[i]);
}

}  // namespace phalanx::kernels
