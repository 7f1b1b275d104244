#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace fathom::cpu {

// Unsigned integers in the order in which values of S are selected.
template <class S>
using OrderKey = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;

// NaN is above everything, -0 equal to 0.
template <class S>
OrderKey<S> OrderKeyOf(S value) {
  using Key = OrderKey<S>;
  if (value != value) return ~Key(0);
  const Key bits = std::bit_cast<Key>(value + S(0));  // -0 + 0 is 0
  constexpr Key kSign = Key(1) << (8 * sizeof(Key) - 1);
  return (bits & kSign) != 0 ? static_cast<Key>(~bits) : static_cast<Key>(bits | kSign);
}

// first + i for the k places i < n (1 <= k <= n) with the largest value(i), ascending; ties go to
// the lower place. `keys` is room for n keys.
template <class S, class Value>
void TopK(int64_t n, int64_t k, const Value& value, OrderKey<S>* keys, int64_t first,
          int32_t* places) {
  for (int64_t i = 0; i < n; ++i) keys[i] = OrderKeyOf<S>(value(i));
  std::nth_element(keys, keys + (n - k), keys + n);
  const OrderKey<S> threshold = keys[n - k];
  // Those above the k-th largest all enter, and of its equals the first ones.
  int64_t equals = k;
  for (int64_t i = n - k; i < n; ++i) equals -= keys[i] > threshold;
  for (int64_t i = 0; i < n; ++i) {
    const OrderKey<S> key = OrderKeyOf<S>(value(i));
    if (key > threshold || (key == threshold && equals-- > 0)) *places++ = first + i;
  }
}

}  // namespace fathom::cpu
