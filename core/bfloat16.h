#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace fathom {

// The upper half of a float: 8 bits of exponent, 7 of fraction. A storage type: computing is done
// in float, and every conversion is written out.
struct BFloat16 {
  BFloat16() = default;
  // Rounds to nearest, ties to even; beyond the range to infinity; NaN stays NaN. Doubles are
  // rounded to float first.
  template <class Number>
  requires std::is_arithmetic_v<Number>
  explicit constexpr BFloat16(Number number) {
    const uint32_t wide = std::bit_cast<uint32_t>(static_cast<float>(number));
    const uint32_t rounded = (wide + 0x7fff + ((wide >> 16) & 1)) >> 16;
    const uint32_t quiet_nan = (wide >> 16) | 0x40;
    const bool is_nan = (wide & 0x7fffffff) > 0x7f800000;
    bits = static_cast<uint16_t>(is_nan ? quiet_nan : rounded);
  }
  static constexpr BFloat16 FromBits(uint16_t bits) {
    BFloat16 value;
    value.bits = bits;
    return value;
  }

  // Exact.
  template <class Number>
  requires std::is_floating_point_v<Number>
  explicit constexpr operator Number() const { return std::bit_cast<float>(uint32_t{bits} << 16); }

  uint16_t bits;
};

}  // namespace fathom
