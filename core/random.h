#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fathom {

// Counter-based random numbers: every number is a pure function of a key and a counter, so any
// rank, thread or restart can ask for any of them. Philox 4x32 with 10 rounds: Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// 64-bit FNV-1a, for keys from names. (Fowler, Noll, Vo; the parameters of the 64-bit variant.)
uint64_t HashName(std::string_view name);

// Element `element` of the standard normal stream (seed, name hash), by Box-Muller in double.
double NormalAt(uint64_t seed, uint64_t name_hash, uint64_t element);

}  // namespace fathom
