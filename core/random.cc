#include "core/random.h"

#include <cmath>
#include <numbers>

namespace fathom {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3;
  }
  return hash;
}

double NormalAt(uint64_t seed, uint64_t name_hash, uint64_t element) {
  // One block of four words gives two normals: elements 2i and 2i + 1.
  const uint64_t block = element / 2;
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                  static_cast<uint32_t>(name_hash), static_cast<uint32_t>(name_hash >> 32)},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t a = (uint64_t{words[1]} << 32 | words[0]) >> 11;
  const uint64_t b = (uint64_t{words[3]} << 32 | words[2]) >> 11;
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-53;  // never 0
  const double angle = 2 * std::numbers::pi * (static_cast<double>(b) * 0x1p-53);
  const double radius = std::sqrt(-2 * std::log(u));
  return element % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace fathom
