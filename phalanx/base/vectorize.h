#pragma once

namespace phalanx {

/// What the compiler may use: chosen once from the CPU that runs.
enum class VectorLevel { baseline, avx2, avx512 };

VectorLevel vector_level();

namespace detail {
#if defined(__x86_64__)
template <class Body>
[[gnu::target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,bmi2")]] void run_avx512(
    const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx2,fma,bmi2")]] void run_avx2(const Body& body) {
  body();
}
#endif
}  // namespace detail

/// Runs `body`, compiled for the best instruction set of this CPU. For that `body` must be a lambda
/// marked `__attribute__((always_inline))` and call nothing but functions marked likewise.
template <class Body>
void vectorized(const Body& body) {
#if defined(__x86_64__)
  switch (vector_level()) {
    case VectorLevel::avx512:
      return detail::run_avx512(body);
    case VectorLevel::avx2:
      return detail::run_avx2(body);
    case VectorLevel::baseline:
      break;
  }
#endif
  body();
}

}  // namespace phalanx
