#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Arithmetic on rows that compilers turn into vector instructions and whose order of summation is
// fixed: it depends on the length of a row and on nothing else.
namespace fathom::cpu {

inline constexpr int kLanes = 16;

// sum_j term(j), j < n: 16 interleaved partial sums, then a tree.
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
  S lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = floor;
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const S x = value(j + lane);
      lanes[lane] = x > lanes[lane] ? x : lanes[lane];
    }
  }
  for (; j < n; ++j) lanes[0] = value(j) > lanes[0] ? S(value(j)) : lanes[0];
  S largest = lanes[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = lanes[lane] > largest ? lanes[lane] : largest;
  return largest;
}

// e^x within 2 units in the last place. Results below the smallest normal number are 0, since
// processors compute slowly with the others; NaN passes.
inline float Exp(float x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer, which then stands
  // in the low bits.
  constexpr float kRound = 12582912.0f;
  const float bounded = x > 89.0f ? 89.0f : (x < -88.0f ? -88.0f : x);
  const float shifted = bounded * 1.44269504089f + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  // The Taylor coefficients; the first one left out is r^8 / 8! < 6e-9.
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^n in two factors: 2^128 alone is not a float.
  const uint32_t power = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(power) >> 1);
  const float low = std::bit_cast<float>((half + 127) << 23);
  const float high = std::bit_cast<float>((power - half + 127) << 23);
  const float result = p * low * high;
  return x < -87.33654f ? 0.0f : result;
}
inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + e^-x), never overflowing.
template <class S>
inline S Sigmoid(S x) {
  const S e = Exp(x < 0 ? x : -x);
  return (x < 0 ? e : S(1)) / (S(1) + e);
}

}  // namespace fathom::cpu
