// Compiled without contraction into fused multiply-adds, so that every CPU gives the same bits.
#if defined(__clang__)
#pragma clang fp contract(off)
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "phalanx/base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "phalanx/base/vectorize.h"

namespace phalanx {
namespace {

constexpr int lanes = 32;  // counters per batch; each gives two normal numbers

uint64_t mix(uint64_t x) {  // the finalizer of splitmix64 (Steele et al. 2014)
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Two words as a number in [0, 1): 52 bits behind the exponent of 1.
[[gnu::always_inline]] inline double unit_interval(uint32_t low, uint32_t high) {
  const uint64_t bits = (uint64_t(high) << 20) | (low >> 12);
  return std::bit_cast<double>(0x3FF0000000000000u | bits) - 1.0;
}

// Natural logarithm of a normal positive number: x = 2^e m with m in [sqrt(1/2), sqrt(2)),
// log m = 2 atanh(f), f = (m - 1) / (m + 1), |f| < 0.172.
[[gnu::always_inline]] inline double logarithm(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t shifted = bits - 0x3FE6A09E667F3BCDu;  // the bits of sqrt(1/2)
  const uint64_t exponent =
      (shifted >> 52) + 0x4330000000000000u;  // as a double: 2^52 + e mod 4096
  const double wrapped = std::bit_cast<double>(exponent) - 0x1p52;
  const double e = wrapped - (wrapped >= 2048.0 ? 4096.0 : 0.0);
  const double m = std::bit_cast<double>(bits - (shifted & 0xFFF0000000000000u));
  const double f = (m - 1.0) / (m + 1.0);
  const double g = f * f;
  double sum = 1.0 / 21;
  for (int odd = 19; odd >= 1; odd -= 2) sum = sum * g + 1.0 / odd;
  return e * 0.6931471805599453 + 2.0 * f * sum;
}

// Cosine and sine of 2 pi x for x in [0, 1): Taylor series on an eighth of the circle.
[[gnu::always_inline]] inline void circle(double x, double& cosine, double& sine) {
  const double quarter = (4.0 * x + 0x1.8p52) - 0x1.8p52;  // nearest integer, 0 to 4
  const double angle = 6.283185307179586 * (x - 0.25 * quarter);
  const double s = angle * angle;
  double c = 1.0 / 20922789888000;  // 1/16!
  c = c * s - 1.0 / 87178291200;
  c = c * s + 1.0 / 479001600;
  c = c * s - 1.0 / 3628800;
  c = c * s + 1.0 / 40320;
  c = c * s - 1.0 / 720;
  c = c * s + 1.0 / 24;
  c = c * s - 0.5;
  c = c * s + 1.0;
  double d = 1.0 / 355687428096000;  // 1/17!
  d = d * s - 1.0 / 1307674368000;
  d = d * s + 1.0 / 6227020800;
  d = d * s - 1.0 / 39916800;
  d = d * s + 1.0 / 362880;
  d = d * s - 1.0 / 5040;
  d = d * s + 1.0 / 120;
  d = d * s - 1.0 / 6;
  d = (d * s + 1.0) * angle;
  const bool odd = quarter == 1.0 || quarter == 3.0;
  const double a = odd ? d : c, b = odd ? c : d;
  cosine = quarter == 1.0 || quarter == 2.0 ? -a : a;
  sine = quarter == 2.0 || quarter == 3.0 ? -b : b;
}

// The normal numbers 2 * block ... 2 * (block + lanes) - 1.
[[gnu::always_inline]] inline void normal_batch(RandomKey key, uint64_t block, double deviation,
                                                double (&out)[2 * lanes]) {
  uint32_t words[4][lanes];
  for (int i = 0; i < lanes; ++i) {
    words[0][i] = uint32_t(block + uint64_t(i));
    words[1][i] = uint32_t((block + uint64_t(i)) >> 32);
    words[2][i] = 0;
    words[3][i] = 0;
  }
  philox(key, words);
  double radius[lanes], cosine[lanes], sine[lanes];
  for (int i = 0; i < lanes; ++i)
    radius[i] = -2.0 * logarithm(1.0 - unit_interval(words[0][i], words[1][i]));
  for (int i = 0; i < lanes; ++i) radius[i] = std::sqrt(radius[i]) * deviation;
  for (int i = 0; i < lanes; ++i)
    circle(unit_interval(words[2][i], words[3][i]), cosine[i], sine[i]);
  for (int i = 0; i < lanes; ++i) {
    out[2 * i] = radius[i] * cosine[i];
    out[2 * i + 1] = radius[i] * sine[i];
  }
}

template <class T>
void fill(RandomKey key, uint64_t begin, int64_t count, double deviation, T* out) {
  vectorized([=]() __attribute__((always_inline)) {
    double batch[2 * lanes];
    int64_t done = 0;
    while (done < count) {
      const uint64_t at = begin + uint64_t(done), skip = at % 2;
      normal_batch(key, at / 2, deviation, batch);
      const int64_t use = std::min<int64_t>(2 * lanes - int64_t(skip), count - done);
      for (int64_t i = 0; i < use; ++i) out[done + i] = T(batch[int64_t(skip) + i]);
      done += use;
    }
  });
}

}  // namespace

RandomKey random_key(uint64_t seed, std::string_view name, uint64_t index) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001B3u;
  const uint64_t key = mix(mix(mix(seed) ^ hash) ^ index);
  return {uint32_t(key), uint32_t(key >> 32)};
}

RandomBlock philox(RandomKey key, RandomBlock counter) {
  uint32_t words[4][1] = {{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}};
  philox(key, words);
  return {words[0][0], words[1][0], words[2][0], words[3][0]};
}

double uniform(RandomKey key, uint64_t index) {
  const RandomBlock words = philox(key, {uint32_t(index), uint32_t(index >> 32), 1, 0});
  return unit_interval(words[0], words[1]);
}

void fill_normal(RandomKey key, uint64_t begin, int64_t count, double deviation, double* out) {
  fill(key, begin, count, deviation, out);
}
void fill_normal(RandomKey key, uint64_t begin, int64_t count, double deviation, float* out) {
  fill(key, begin, count, deviation, out);
}

}  // namespace phalanx
