#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

// What forward and backward attention share.
//
// The query rows of a segment fall into blocks at fixed places: block 0 is its first kFirstRows
// rows, in loops of its own, which cost no padding when segments are short; the others are
// `block_rows` rows of all query heads of one key/value head, in matrix products over `kKeys` keys
// at a time. Every product's shape follows from the place of its block in the segment alone, short
// blocks are filled up with zeros and all operands are packed under the same strides: so the bits
// of a row depend on the rows up to it and not on the segment's length.
namespace fathom::cpu {

inline constexpr int64_t kFirstRows = 64;
inline constexpr int64_t kKeys = 256;

inline int64_t RoundUp(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

struct AttentionShape {
  AttentionShape(const Tensor& q, int64_t heads, int64_t kv_heads)
      : group(heads / kv_heads),
        h(q.dim(1) / heads),
        width(RoundUp(h, 8)),
        block_rows(group == 1 ? 128 : 64),
        product_rows(group * block_rows) {
    FATHOM_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0)
        << heads << " query heads on " << kv_heads << " key/value heads";
    FATHOM_CHECK_EQ(h * heads, q.dim(1));
  }

  int64_t Blocks(int64_t length) const {
    const int64_t rest = length - kFirstRows;
    return (length > 0) + (rest > 0 ? (rest + block_rows - 1) / block_rows : 0);
  }
  // The first row of a block, or one past the last row of the block before.
  int64_t BlockBegin(int64_t block) const {
    return block == 0 ? 0 : kFirstRows + (block - 1) * block_rows;
  }

  int64_t group;  // H / G
  int64_t h;
  int64_t width;         // of packed rows: h, filled up with zeros
  int64_t block_rows;    // query rows of a block
  int64_t product_rows;  // of a block's products: those of every head of the group
};

// Hands out pieces of one worker's scratch.
template <class S>
class Pieces {
 public:
  explicit Pieces(S* next) : next_(next) {}
  S* Take(int64_t elements) {
    S* piece = next_;
    next_ += RoundUp(elements, 16);
    return piece;
  }
  // The scratch that `takes` pieces of `elements` in all need.
  static int64_t Bytes(int64_t elements, int64_t takes) {
    return (elements + 16 * takes) * static_cast<int64_t>(sizeof(S));
  }

 private:
  S* next_;
};

// packed[i] = x[i] for `rows` rows of h elements, zeros up to `width` and to `padded_rows`.
template <class T, class S>
void PackRows(const T* x, int64_t stride, int64_t rows, int64_t padded_rows, int64_t h,
              int64_t width, S* packed) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < h; ++j) packed[i * width + j] = static_cast<S>(x[i * stride + j]);
    for (int64_t j = h; j < width; ++j) packed[i * width + j] = 0;
  }
  std::fill_n(packed + rows * width, (padded_rows - rows) * width, S(0));
}

// packed[j][i] = x[i][j], rows of kFirstRows elements, zeros from `rows` to a whole vector.
template <class T, class S>
void PackTransposed(const T* x, int64_t stride, int64_t rows, int64_t h, S* packed) {
  for (int64_t j = 0; j < h; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      packed[j * kFirstRows + i] = static_cast<S>(x[i * stride + j]);
    }
    for (int64_t i = rows; i < RoundUp(rows, 8); ++i) packed[j * kFirstRows + i] = 0;
  }
}

template <class S>
using Vector [[gnu::vector_size(32)]] = S;

template <class S>
Vector<S> LoadVector(const S* from) {
  Vector<S> vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}
// kVectors vectors of y at once, see RowTimesMatrix.
template <int kVectors, class S>
void ColumnsTimes(const S* x, int64_t k, const S* matrix, int64_t stride, S* y) {
  constexpr int64_t kElements = 32 / sizeof(S);
  Vector<S> sums[kVectors] = {};
  for (int64_t i = 0; i < k; ++i) {
    const Vector<S> factor = x[i] - Vector<S>{};
    for (int v = 0; v < kVectors; ++v) {
      sums[v] += factor * LoadVector(matrix + i * stride + v * kElements);
    }
  }
  for (int v = 0; v < kVectors; ++v) std::memcpy(y + v * kElements, &sums[v], 32);
}

// y_j = sum_i x_i matrix[i][j] for i < k and j < n, n a multiple of 8. Each sum goes up in i.
template <class S>
void RowTimesMatrix(const S* x, int64_t k, const S* matrix, int64_t stride, int64_t n, S* y) {
  constexpr int64_t kElements = 32 / sizeof(S);
  int64_t j = 0;
  for (; j + 8 * kElements <= n; j += 8 * kElements) {
    ColumnsTimes<8>(x, k, matrix + j, stride, y + j);
  }
  for (; j + 4 * kElements <= n; j += 4 * kElements) {
    ColumnsTimes<4>(x, k, matrix + j, stride, y + j);
  }
  for (; j + 2 * kElements <= n; j += 2 * kElements) {
    ColumnsTimes<2>(x, k, matrix + j, stride, y + j);
  }
  for (; j < n; j += kElements) ColumnsTimes<1>(x, k, matrix + j, stride, y + j);
}

// matrix[i] += x_i * y for i < k, rows of `width` elements.
template <class S>
void AddOuterProduct(const S* x, int64_t k, const S* y, int64_t width, S* matrix) {
  for (int64_t i = 0; i < k; ++i) {
    const S factor = x[i];
    S* row = matrix + i * width;
    for (int64_t j = 0; j < width; ++j) row[j] += factor * y[j];
  }
}

// The sum over segments of the pairs that attention computes for one head.
inline double PairsOf(const Tensor& segments) {
  const int32_t* border = segments.data<int32_t>();
  double pairs = 0;
  for (int64_t s = 0; s + 1 < segments.elements(); ++s) {
    const double length = border[s + 1] - border[s];
    FATHOM_CHECK(length >= 0) << "segment " << s << " ends before it begins";
    pairs += length * (length + 1) / 2;
  }
  return pairs;
}

}  // namespace fathom::cpu
