#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/router.h"

// Which rows a sparse layer sees.
namespace fathom {
namespace {

// An unsigned integer in the order of z: NaN above everything, -0 equal to 0.
template <class S>
auto OrderKey(S z) {
  using Bits = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
  if (z != z) return ~Bits(0);
  const Bits bits = std::bit_cast<Bits>(z + S(0));  // -0 + 0 is 0
  constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);
  return (bits & kSign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | kSign);
}

// `keys` is room for the n keys.
template <class S, class Key>
void TopKOfSequence(const S* z, int64_t n, int64_t k, Key* keys, int64_t first_row,
                    int32_t* index) {
  for (int64_t i = 0; i < n; ++i) keys[i] = OrderKey(z[i]);
  std::nth_element(keys, keys + (n - k), keys + n);
  const Key threshold = keys[n - k];
  // Those above the k-th largest all enter, and of its equals the first ones.
  int64_t equals = k;
  for (int64_t i = n - k; i < n; ++i) equals -= keys[i] > threshold;
  for (int64_t i = 0; i < n; ++i) {
    const Key key = OrderKey(z[i]);
    if (key > threshold || (key == threshold && equals-- > 0)) *index++ = first_row + i;
  }
}

}  // namespace

void RunOnCpu(const SelectTopK& operation, CpuStream& stream) {
  const SelectTopK& op = operation;
  const int64_t n = op.z.dim(1);
  FATHOM_CHECK(op.k >= 1 && op.k <= n) << "the top " << op.k << " of " << n;
  FATHOM_CHECK_EQ(op.index.elements(), op.z.dim(0) * op.k);
  cpu::DispatchStatistics(op.z.dtype(), [&](auto type) {
    using S = decltype(type);
    using Key = decltype(OrderKey(S()));
    const cpu::RowsOf<S> z(op.z);
    int32_t* index = op.index.data<int32_t>();
    cpu::ParallelTasks(stream, op.z.dim(0), 8 * n, [&](int64_t sequence, int thread) {
      Key* keys = static_cast<Key*>(stream.Scratch(thread, n * sizeof(Key)));
      TopKOfSequence(z[sequence], n, op.k, keys, sequence * n, index + sequence * op.k);
    });
  });
}

void RunOnCpu(const SelectThreshold& operation, CpuStream&) {
  const SelectThreshold& op = operation;
  cpu::DispatchStatistics(op.value.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* value = op.value.data<S>();
    int32_t* index = op.index.data<int32_t>();
    int32_t selected = 0;
    for (int64_t i = 0; i < op.value.elements(); ++i) {
      if (value[i] >= 0) index[selected++] = i;
    }
    *op.count.data<int32_t>() = selected;
  });
}

}  // namespace fathom
