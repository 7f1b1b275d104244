#include "kernels/attention.h"
#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/gemm.h"

namespace fathom {
namespace {

using cpu::AttentionShape;
using cpu::GemmArguments;
using cpu::kFirstRows;
using cpu::kKeys;
using cpu::RowsOf;

// One key/value head of one segment, by one worker: the gradients of keys and values are summed in
// ascending blocks of query rows. With D_i = d_o_i . o_i:
//   dp = d_o v^T,  ds = scale * p * (dp - D),  dq = ds k,  dk = ds^T q,  dv = p^T d_o.
template <class T>
class HeadBackward {
 public:
  using S = cpu::Stat<T>;

  HeadBackward(const AttentionBackward& op, const AttentionShape& shape)
      : shape_(shape),
        scale_(static_cast<S>(op.scale)),
        q_(op.q),
        k_(op.k),
        v_(op.v),
        o_(op.o),
        d_o_(op.d_o),
        dq_(op.dq),
        dk_(op.dk),
        dv_(op.dv),
        lse_(op.lse) {}

  void Run(CpuStream& stream, int thread, int64_t kv_head, int64_t begin, int64_t length) {
    kv_head_ = kv_head;
    begin_ = begin;
    length_ = length;
    const int64_t blocks = shape_.Blocks(length);
    if (blocks == 0) return;
    const int64_t padded = blocks > 1 ? shape_.BlockBegin(blocks) : length;
    Allocate(stream, thread, padded, blocks);
    const int64_t column = kv_head * shape_.h;
    const T* k = k_[begin] + column;
    const T* v = v_[begin] + column;
    cpu::PackRows(k, k_.stride, length, padded, shape_.h, shape_.width, keys_);
    if (blocks > 1) cpu::PackRows(v, v_.stride, length, padded, shape_.h, shape_.width, values_);
    std::fill_n(d_keys_, padded * shape_.width, S(0));
    std::fill_n(d_values_, padded * shape_.width, S(0));
    FirstBlock(k, v);
    for (int64_t block = 1; block < blocks; ++block) Block(shape_.BlockBegin(block));
    for (int64_t i = 0; i < length; ++i) {
      Store(d_keys_ + i * shape_.width, dk_[begin + i] + column);
      Store(d_values_ + i * shape_.width, dv_[begin + i] + column);
    }
  }

 private:
  void Allocate(CpuStream& stream, int thread, int64_t padded, int64_t blocks) {
    const int64_t width = shape_.width;
    const int64_t rows = blocks > 1 ? shape_.product_rows : 1;
    const int64_t elements =
        padded * width * 4 + kFirstRows * width * 2 + rows * (3 * width + 2 * kKeys + 2);
    cpu::Pieces<S> pieces(
        static_cast<S*>(stream.Scratch(thread, cpu::Pieces<S>::Bytes(elements, 13))));
    keys_ = pieces.Take(padded * width);
    values_ = pieces.Take(padded * width);
    d_keys_ = pieces.Take(padded * width);
    d_values_ = pieces.Take(padded * width);
    transposed_keys_ = pieces.Take(kFirstRows * width);
    transposed_values_ = pieces.Take(kFirstRows * width);
    queries_ = pieces.Take(rows * width);
    d_outputs_ = pieces.Take(rows * width);
    d_queries_ = pieces.Take(rows * width);
    scores_ = pieces.Take(rows * kKeys);
    d_scores_ = pieces.Take(rows * kKeys);
    dots_ = pieces.Take(rows);
    lses_ = pieces.Take(rows);
  }

  int64_t Head(int64_t head_of_group) const { return kv_head_ * shape_.group + head_of_group; }
  int64_t Column(int64_t head_of_group) const { return Head(head_of_group) * shape_.h; }

  void Store(const S* from, T* to) const {
    for (int64_t j = 0; j < shape_.h; ++j) to[j] = static_cast<T>(from[j]);
  }

  // D of one query row.
  S Dot(int64_t row, int64_t column) const {
    const T* o = o_[row] + column;
    const T* d_o = d_o_[row] + column;
    return cpu::LaneSum<S>(
        shape_.h, [&](int64_t j) { return static_cast<S>(o[j]) * static_cast<S>(d_o[j]); });
  }

  // Of the first n keys: scores become p, d_scores become ds.
  void Differentiate(S* __restrict scores, S* __restrict d_scores, int64_t n, S lse, S dot) const {
    for (int64_t j = 0; j < n; ++j) {
      const S p = cpu::Exp(scores[j] - lse);
      scores[j] = p;
      d_scores[j] = scale_ * p * (d_scores[j] - dot);
    }
  }

  void FirstBlock(const T* k, const T* v) {
    const int64_t rows = std::min(length_, kFirstRows);
    const int64_t width = shape_.width;
    cpu::PackTransposed(k, k_.stride, rows, shape_.h, transposed_keys_);
    cpu::PackTransposed(v, v_.stride, rows, shape_.h, transposed_values_);
    for (int64_t head = 0; head < shape_.group; ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = begin_ + i;
        cpu::PackRows(q_[row] + Column(head), 0, 1, 1, shape_.h, width, queries_);
        cpu::PackRows(d_o_[row] + Column(head), 0, 1, 1, shape_.h, width, d_outputs_);
        const int64_t keys = cpu::RoundUp(i + 1, 8);
        cpu::RowTimesMatrix(queries_, shape_.h, transposed_keys_, kFirstRows, keys, scores_);
        cpu::RowTimesMatrix(d_outputs_, shape_.h, transposed_values_, kFirstRows, keys, d_scores_);
        for (int64_t j = 0; j <= i; ++j) scores_[j] *= scale_;
        Differentiate(scores_, d_scores_, i + 1, lse_[row][Head(head)], Dot(row, Column(head)));
        cpu::RowTimesMatrix(d_scores_, i + 1, keys_, width, width, d_queries_);
        Store(d_queries_, dq_[row] + Column(head));
        cpu::AddOuterProduct(d_scores_, i + 1, queries_, width, d_keys_);
        cpu::AddOuterProduct(scores_, i + 1, d_outputs_, width, d_values_);
      }
    }
  }

  void Block(int64_t first) {
    const int64_t rows = std::min(shape_.block_rows, length_ - first);
    for (int64_t head = 0; head < shape_.group; ++head) {
      const int64_t packed = head * shape_.block_rows;
      const int64_t column = Column(head);
      cpu::PackRows(q_[begin_ + first] + column, q_.stride, rows, shape_.block_rows, shape_.h,
                    shape_.width, queries_ + packed * shape_.width);
      cpu::PackRows(d_o_[begin_ + first] + column, d_o_.stride, rows, shape_.block_rows, shape_.h,
                    shape_.width, d_outputs_ + packed * shape_.width);
      for (int64_t i = 0; i < rows; ++i) {
        dots_[packed + i] = Dot(begin_ + first + i, column);
        lses_[packed + i] = lse_[begin_ + first + i][Head(head)];
      }
    }
    const int64_t end = first + shape_.block_rows;
    for (int64_t key = 0; key < end; key += kKeys) {
      BlockTimesKeys(first, rows, key, std::min(kKeys, end - key));
    }
    for (int64_t head = 0; head < shape_.group; ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        Store(d_queries_ + (head * shape_.block_rows + i) * shape_.width,
              dq_[begin_ + first + i] + Column(head));
      }
    }
  }

  void BlockTimesKeys(int64_t first, int64_t rows, int64_t key, int64_t keys) {
    RowsTimesKeys(queries_, keys_ + key * shape_.width, keys, scale_, scores_);
    RowsTimesKeys(d_outputs_, values_ + key * shape_.width, keys, 1, d_scores_);
    for (int64_t row = 0; row < shape_.product_rows; ++row) {
      const int64_t i = row % shape_.block_rows;
      const int64_t seen = i < rows ? std::clamp<int64_t>(first + i - key + 1, 0, keys) : 0;
      S* scores = scores_ + row * kKeys;
      S* d_scores = d_scores_ + row * kKeys;
      if (seen > 0) Differentiate(scores, d_scores, seen, lses_[row], dots_[row]);
      std::fill(scores + seen, scores + keys, S(0));
      std::fill(d_scores + seen, d_scores + keys, S(0));
    }
    AddKeysTimesRows(scores_, d_outputs_, keys, d_values_ + key * shape_.width);
    AddKeysTimesRows(d_scores_, queries_, keys, d_keys_ + key * shape_.width);
    cpu::Gemm(GemmArguments<S>{.m = shape_.product_rows,
                               .n = shape_.h,
                               .k = keys,
                               .a = d_scores_,
                               .lda = kKeys,
                               .b = keys_ + key * shape_.width,
                               .ldb = shape_.width,
                               .beta = key > 0 ? S(1) : S(0),
                               .c = d_queries_,
                               .ldc = shape_.width});
  }

  // c = alpha * rows keys^T, of a block's rows.
  void RowsTimesKeys(const S* rows, const S* keys, int64_t n, S alpha, S* c) const {
    cpu::Gemm(GemmArguments<S>{.transpose_b = true,
                               .m = shape_.product_rows,
                               .n = n,
                               .k = shape_.h,
                               .alpha = alpha,
                               .a = rows,
                               .lda = shape_.width,
                               .b = keys,
                               .ldb = shape_.width,
                               .c = c,
                               .ldc = kKeys});
  }

  // sum += weights^T rows, for `keys` keys.
  void AddKeysTimesRows(const S* weights, const S* rows, int64_t keys, S* sum) const {
    cpu::Gemm(GemmArguments<S>{.transpose_a = true,
                               .m = keys,
                               .n = shape_.h,
                               .k = shape_.product_rows,
                               .a = weights,
                               .lda = kKeys,
                               .b = rows,
                               .ldb = shape_.width,
                               .beta = 1,
                               .c = sum,
                               .ldc = shape_.width});
  }

  const AttentionShape& shape_;
  const S scale_;
  const RowsOf<T> q_, k_, v_, o_, d_o_, dq_, dk_, dv_;
  const RowsOf<S> lse_;
  int64_t kv_head_ = 0;
  int64_t begin_ = 0;  // the segment's first row
  int64_t length_ = 0;

  S* keys_ = nullptr;  // [rows of all blocks, width], as the next three
  S* values_ = nullptr;
  S* d_keys_ = nullptr;
  S* d_values_ = nullptr;
  S* transposed_keys_ = nullptr;    // [h, kFirstRows]
  S* transposed_values_ = nullptr;  // [h, kFirstRows]
  S* queries_ = nullptr;            // [product_rows, width], as the next two
  S* d_outputs_ = nullptr;
  S* d_queries_ = nullptr;
  S* scores_ = nullptr;    // [product_rows, kKeys], then p
  S* d_scores_ = nullptr;  // [product_rows, kKeys]
  S* dots_ = nullptr;      // [product_rows], D
  S* lses_ = nullptr;      // [product_rows]
};

template <class T>
void Backward(const AttentionBackward& op, CpuStream& stream) {
  const AttentionShape shape(op.q, op.heads, op.kv_heads);
  const int64_t tasks = (op.segments.elements() - 1) * op.kv_heads;
  const int32_t* border = op.segments.data<int32_t>();
  if (tasks <= 0) return;
  const double work = cpu::PairsOf(op.segments) * op.heads * shape.h / 2;
  cpu::ParallelTasks(stream, tasks, work / tasks, [&](int64_t task, int thread) {
    const int64_t segment = task / op.kv_heads;
    HeadBackward<T>(op, shape).Run(stream, thread, task % op.kv_heads, border[segment],
                                   border[segment + 1] - border[segment]);
  });
}

}  // namespace

void RunOnCpu(const AttentionBackward& operation, CpuStream& stream) {
  cpu::Dispatch(operation.q.dtype(),
                [&](auto type) { Backward<decltype(type)>(operation, stream); });
}

}  // namespace fathom
