#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Arithmetic on rows that compilers turn into vector instructions and whose order of summation is
// fixed: it depends on the length of a row and on nothing else.
namespace fathom::cpu {

inline constexpr int kLanes = 32;

// sum_j term(j), j < n: 32 interleaved partial sums, then a tree.
template <class S, class Term>
inline S LaneSum(int64_t n, const Term& term) {
  S lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(j + lane);
  }
  for (int lane = 0; j + lane < n; ++lane) lanes[lane] += term(j + lane);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// The largest of `floor` and value(j), j < n. NaN is passed over.
template <class S, class Value>
inline S LaneMax(int64_t n, S floor, const Value& value) {
  S largest = floor;
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < n; ++j) {
    const S x = value(j);
    largest = x > largest ? x : largest;
  }
  return largest;
}

// e^x within 2 units in the last place. Results below 2e-38 are 0, which keeps off the numbers that
// processors compute slowly with; NaN passes.
inline float Exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer, which then stands
  // in the low bits.
  constexpr float kRound = 12582912.0f;
  const float below = x > 89.0f ? 89.0f : x;
  const float bounded = below < -87.3f ? -87.3f : below;
  const float shifted = bounded * 1.44269504089f + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // 2 e^r: the interpolation of (e^r - 1) / r in 6 Chebyshev points, exact to 5e-09.
  float p = 0.00278673717f;
  p = p * r + 0.0167383688f;
  p = p * r + 0.0833329292f;
  p = p * r + 0.333330099f;
  p = p * r + 1.0f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;
  // Times 2^(n - 1), whose exponent field is n + 126 and 0 at the lower bound.
  constexpr uint32_t kBias = 126 - std::bit_cast<uint32_t>(kRound);
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + kBias) << 23);
}
inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + e^-x), never overflowing.
template <class S>
inline S Sigmoid(S x) {
  const S e = Exp(x < 0 ? x : -x);
  return (x < 0 ? e : S(1)) / (S(1) + e);
}

}  // namespace fathom::cpu
