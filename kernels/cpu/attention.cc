#include "kernels/attention.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_blocks.h"
#include "kernels/cpu/gemm.h"

namespace fathom {
namespace {

using cpu::AttentionShape;
using cpu::GemmArguments;
using cpu::kFirstRows;
using cpu::kKeys;
using cpu::RowsOf;

// One key/value head of one segment, by one worker.
template <class T>
class HeadForward {
 public:
  using S = cpu::Stat<T>;

  HeadForward(const Attention& op, const AttentionShape& shape)
      : shape_(shape),
        scale_(static_cast<S>(op.scale)),
        q_(op.q),
        k_(op.k),
        v_(op.v),
        o_(op.o),
        lse_(op.lse) {}

  // Blocks first_block, first_block + step, ...
  void Run(CpuStream& stream, int thread, int64_t kv_head, int64_t begin, int64_t length,
           int64_t first_block, int64_t step) {
    kv_head_ = kv_head;
    begin_ = begin;
    length_ = length;
    const int64_t blocks = shape_.Blocks(length);
    if (first_block >= blocks) return;
    Allocate(stream, thread, blocks);
    const T* k = k_[begin] + kv_head * shape_.h;
    const T* v = v_[begin] + kv_head * shape_.h;
    const int64_t padded = shape_.BlockBegin(blocks);
    if (blocks > 1) cpu::PackRows(k, k_.stride, length, padded, shape_.h, shape_.width, keys_);
    cpu::PackRows(v, v_.stride, length, blocks > 1 ? padded : length, shape_.h, shape_.width,
                  values_);
    for (int64_t block = first_block; block < blocks; block += step) {
      if (block == 0) {
        FirstBlock(k);
      } else {
        Block(shape_.BlockBegin(block));
      }
    }
  }

 private:
  void Allocate(CpuStream& stream, int thread, int64_t blocks) {
    const int64_t width = shape_.width;
    const int64_t keys = blocks > 1 ? shape_.BlockBegin(blocks) * width : 0;
    const int64_t values = blocks > 1 ? keys : kFirstRows * width;
    const int64_t rows = blocks > 1 ? shape_.product_rows : 1;
    const int64_t elements =
        keys + values + kFirstRows * (width + 1) + rows * (2 * width + kKeys + 2);
    cpu::Pieces<S> pieces(
        static_cast<S*>(stream.Scratch(thread, cpu::Pieces<S>::Bytes(elements, 8))));
    keys_ = pieces.Take(keys);
    values_ = pieces.Take(values);
    transposed_keys_ = pieces.Take(kFirstRows * width);
    queries_ = pieces.Take(rows * width);
    scores_ = pieces.Take(rows * kKeys);
    outputs_ = pieces.Take(rows * width);
    largest_ = pieces.Take(rows);
    sums_ = pieces.Take(rows);
  }

  int64_t Column(int64_t head_of_group) const {
    return (kv_head_ * shape_.group + head_of_group) * shape_.h;
  }

  // p_j = exp(scores_j - largest), j < n; returns their sum.
  static S Exponentials(S* scores, int64_t n, S largest) {
    for (int64_t j = 0; j < n; ++j) scores[j] = cpu::Exp(scores[j] - largest);
    return cpu::LaneSum<S>(n, [&](int64_t j) { return scores[j]; });
  }

  void Finish(int64_t row, int64_t head_of_group, const S* output, S largest, S sum) {
    T* o = o_[row] + Column(head_of_group);
    const S inverse = S(1) / sum;
    for (int64_t j = 0; j < shape_.h; ++j) o[j] = static_cast<T>(output[j] * inverse);
    lse_[row][kv_head_ * shape_.group + head_of_group] = largest + std::log(sum);
  }

  void FirstBlock(const T* k) {
    const int64_t rows = std::min(length_, kFirstRows);
    cpu::PackTransposed(k, k_.stride, rows, shape_.h, transposed_keys_);
    for (int64_t head = 0; head < shape_.group; ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        const T* q = q_[begin_ + i] + Column(head);
        for (int64_t j = 0; j < shape_.h; ++j) queries_[j] = static_cast<S>(q[j]) * scale_;
        cpu::RowTimesMatrix(queries_, shape_.h, transposed_keys_, kFirstRows,
                            cpu::RoundUp(i + 1, 8), scores_);
        const S largest = cpu::LaneMax<S>(i + 1, -std::numeric_limits<S>::infinity(),
                                          [&](int64_t j) { return scores_[j]; });
        const S sum = Exponentials(scores_, i + 1, largest);
        cpu::RowTimesMatrix(scores_, i + 1, values_, shape_.width, shape_.width, outputs_);
        Finish(begin_ + i, head, outputs_, largest, sum);
      }
    }
  }

  void Block(int64_t first) {
    const int64_t rows = std::min(shape_.block_rows, length_ - first);
    for (int64_t head = 0; head < shape_.group; ++head) {
      cpu::PackRows(q_[begin_ + first] + Column(head), q_.stride, rows, shape_.block_rows, shape_.h,
                    shape_.width, queries_ + head * shape_.block_rows * shape_.width);
    }
    std::fill_n(largest_, shape_.product_rows, -std::numeric_limits<S>::infinity());
    std::fill_n(sums_, shape_.product_rows, S(0));
    const int64_t end = first + shape_.block_rows;
    for (int64_t key = 0; key < end; key += kKeys) {
      BlockTimesKeys(first, rows, key, std::min(kKeys, end - key));
    }
    for (int64_t head = 0; head < shape_.group; ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t row = head * shape_.block_rows + i;
        Finish(begin_ + first + i, head, outputs_ + row * shape_.width, largest_[row], sums_[row]);
      }
    }
  }

  // One step of the running softmax: query rows from `first` on against keys from `key` on.
  void BlockTimesKeys(int64_t first, int64_t rows, int64_t key, int64_t keys) {
    cpu::Gemm(GemmArguments<S>{.transpose_b = true,
                               .m = shape_.product_rows,
                               .n = keys,
                               .k = shape_.h,
                               .alpha = scale_,
                               .a = queries_,
                               .lda = shape_.width,
                               .b = keys_ + key * shape_.width,
                               .ldb = shape_.width,
                               .c = scores_,
                               .ldc = kKeys});
    for (int64_t row = 0; row < shape_.product_rows; ++row) {
      const int64_t i = row % shape_.block_rows;
      const int64_t seen = i < rows ? std::clamp<int64_t>(first + i - key + 1, 0, keys) : 0;
      S* scores = scores_ + row * kKeys;
      if (seen > 0) {
        const S before = largest_[row];
        const S largest = cpu::LaneMax<S>(seen, before, [&](int64_t j) { return scores[j]; });
        const S sum = Exponentials(scores, seen, largest);
        largest_[row] = largest;
        if (key > 0) {
          const S correction = cpu::Exp(before - largest);
          sums_[row] = sums_[row] * correction + sum;
          S* output = outputs_ + row * shape_.width;
          for (int64_t j = 0; j < shape_.h; ++j) output[j] *= correction;
        } else {
          sums_[row] = sum;
        }
      }
      std::fill(scores + seen, scores + keys, S(0));
    }
    cpu::Gemm(GemmArguments<S>{.m = shape_.product_rows,
                               .n = shape_.h,
                               .k = keys,
                               .a = scores_,
                               .lda = kKeys,
                               .b = values_ + key * shape_.width,
                               .ldb = shape_.width,
                               .beta = key > 0 ? S(1) : S(0),
                               .c = outputs_,
                               .ldc = shape_.width});
  }

  const AttentionShape& shape_;
  const S scale_;
  const RowsOf<T> q_, k_, v_, o_;
  const RowsOf<S> lse_;
  int64_t kv_head_ = 0;
  int64_t begin_ = 0;  // the segment's first row
  int64_t length_ = 0;

  S* keys_ = nullptr;             // [rows of all blocks, width]
  S* values_ = nullptr;           // likewise
  S* transposed_keys_ = nullptr;  // [h, kFirstRows]
  S* queries_ = nullptr;          // [product_rows, width]
  S* scores_ = nullptr;           // [product_rows, kKeys]
  S* outputs_ = nullptr;          // [product_rows, width]
  S* largest_ = nullptr;          // [product_rows], the running maximum
  S* sums_ = nullptr;             // [product_rows], of exponentials
};

template <class T>
void Forward(const Attention& op, CpuStream& stream) {
  const AttentionShape shape(op.q, op.heads, op.kv_heads);
  const int64_t segments = op.segments.elements() - 1;
  const int32_t* border = op.segments.data<int32_t>();
  if (segments <= 0) return;
  const int64_t head_tasks = segments * op.kv_heads;
  // Few long segments are shared among the threads by blocks.
  const int64_t parts = std::clamp<int64_t>(4 * stream.threads() / head_tasks, 1, stream.threads());
  const int64_t tasks = head_tasks * parts;
  const double work = cpu::PairsOf(op.segments) * op.heads * shape.h / 4;
  cpu::ParallelTasks(stream, tasks, work / tasks, [&](int64_t task, int thread) {
    const int64_t segment = task / parts / op.kv_heads;
    HeadForward<T>(op, shape).Run(stream, thread, task / parts % op.kv_heads, border[segment],
                                  border[segment + 1] - border[segment], task % parts, parts);
  });
}

}  // namespace

void RunOnCpu(const Attention& operation, CpuStream& stream) {
  cpu::Dispatch(operation.q.dtype(),
                [&](auto type) { Forward<decltype(type)>(operation, stream); });
}

}  // namespace fathom
