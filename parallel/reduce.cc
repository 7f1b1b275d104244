#include "parallel/reduce.h"

#include <algorithm>
#include <type_traits>

#include "core/bfloat16.h"
#include "core/check.h"

namespace fathom {
namespace {

// What values of T are accumulated in.
template <class T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<BFloat16> {
  using Type = float;
};

template <class A>
A Combine(ReduceOp op, A a, A b) {
  if (op == ReduceOp::kMax) return (b > a || b != b) ? b : a;
  if constexpr (std::is_integral_v<A>) {
    using Unsigned = std::make_unsigned_t<A>;
    return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// In blocks, so that the accumulators stay in the nearest cache and `output` may be a source.
template <class T>
void Reduce(ReduceOp op, const std::vector<const void*>& sources, int64_t elements, T* output) {
  using A = typename Accumulator<T>::Type;
  constexpr int64_t kBlock = 512;
  A sums[kBlock];
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t count = std::min(kBlock, elements - begin);
    for (size_t s = 0; s < sources.size(); ++s) {
      const T* source = static_cast<const T*>(sources[s]) + begin;
      for (int64_t i = 0; i < count; ++i) {
        const A value = static_cast<A>(source[i]);
        sums[i] = s == 0 ? value : Combine(op, sums[i], value);
      }
    }
    for (int64_t i = 0; i < count; ++i) output[begin + i] = static_cast<T>(sums[i]);
  }
}

}  // namespace

void ReduceInOrder(DType dtype, ReduceOp op, const std::vector<const void*>& sources,
                   int64_t elements, void* output) {
  FATHOM_CHECK(!sources.empty());
  switch (dtype) {
    case DType::kFloat32:
      return Reduce(op, sources, elements, static_cast<float*>(output));
    case DType::kFloat64:
      return Reduce(op, sources, elements, static_cast<double*>(output));
    case DType::kBFloat16:
      return Reduce(op, sources, elements, static_cast<BFloat16*>(output));
    case DType::kInt32:
      return Reduce(op, sources, elements, static_cast<int32_t*>(output));
    case DType::kInt64:
      return Reduce(op, sources, elements, static_cast<int64_t*>(output));
  }
}

}  // namespace fathom
