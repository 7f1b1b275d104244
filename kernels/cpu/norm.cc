#include "kernels/norm.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::DataOf;
using cpu::RowsOf;

// Row of x plus row of an optional addend.
template <class T>
struct Summands {
  using S = cpu::Stat<T>;
  const T* x;
  const T* addend;  // null for 0
  template <bool kBoth>
  S At(int64_t j) const {
    if constexpr (kBoth) return static_cast<S>(x[j]) + static_cast<S>(addend[j]);
    return static_cast<S>(x[j]);
  }
};

template <class T, bool kBoth>
void NormRow(const Summands<T>& s, const cpu::Stat<T>* weight, double eps, int64_t d, T* sum, T* y,
             cpu::Stat<T>* rstd) {
  using S = cpu::Stat<T>;
  const S squares = cpu::LaneSum<S>(d, [&](int64_t j) {
    const S value = s.template At<kBoth>(j);
    return value * value;
  });
  const S r = S(1) / std::sqrt(squares / static_cast<S>(d) + static_cast<S>(eps));
  *rstd = r;
  for (int64_t j = 0; j < d; ++j) {
    y[j] = static_cast<T>(s.template At<kBoth>(j) * r * weight[j]);
  }
  if (sum == nullptr) return;
  for (int64_t j = 0; j < d; ++j) sum[j] = static_cast<T>(s.template At<kBoth>(j));
}

template <class T>
void Forward(const RmsNorm& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t d = op.y.dim(1);
  const RowsOf<T> x(op.x), addend(op.addend), sum(op.sum), y(op.y);
  const int32_t* index = DataOf<int32_t>(op.index);
  const S* weight = op.weight.data<S>();
  S* rstd = op.rstd.data<S>();
  cpu::ParallelFor(
      stream, cpu::RowsInUse(op.count, op.y.dim(0)), d, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const Summands<T> s{x[index ? index[i] : i], addend.absent() ? nullptr : addend[i]};
          T* sum_row = sum.absent() ? nullptr : sum[i];
          if (s.addend) {
            NormRow<T, true>(s, weight, op.eps, d, sum_row, y[i], rstd + i);
          } else {
            NormRow<T, false>(s, weight, op.eps, d, sum_row, y[i], rstd + i);
          }
        }
      });
}

template <class T, bool kBoth>
void BackwardRow(const Summands<T>& s, const T* dy, const cpu::Stat<T>* weight, cpu::Stat<T> rstd,
                 int64_t d, const T* base, T* dx, const T* base2, T* dx2, double* dweight) {
  using S = cpu::Stat<T>;
  const S product = cpu::LaneSum<S>(
      d, [&](int64_t j) { return weight[j] * static_cast<S>(dy[j]) * s.template At<kBoth>(j); });
  const S factor = rstd * rstd * (product / static_cast<S>(d));
  const auto v = [&](int64_t j) {
    return rstd * (weight[j] * static_cast<S>(dy[j]) - s.template At<kBoth>(j) * factor);
  };
  for (int64_t j = 0; j < d; ++j) {
    dweight[j] += static_cast<S>(dy[j]) * s.template At<kBoth>(j) * rstd;
  }
  if (dx2 != nullptr) {
    for (int64_t j = 0; j < d; ++j) {
      dx2[j] = static_cast<T>((base2 ? static_cast<S>(base2[j]) : S(0)) + v(j));
    }
  }
  if (base != nullptr) {
    for (int64_t j = 0; j < d; ++j) dx[j] = static_cast<T>(static_cast<S>(base[j]) + v(j));
  } else {
    for (int64_t j = 0; j < d; ++j) dx[j] = static_cast<T>(v(j));
  }
}

template <class T>
void Backward(const RmsNormBackward& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t d = op.dy.dim(1);
  const int64_t rows = cpu::RowsInUse(op.count, op.dy.dim(0));
  const RowsOf<T> x(op.x), addend(op.addend), dy(op.dy);
  const RowsOf<T> base(op.base), dx(op.dx), base2(op.base2), dx2(op.dx2);
  const int32_t* dx_index = DataOf<int32_t>(op.dx_index);
  const S* weight = op.weight.data<S>();
  const S* rstd = op.rstd.data<S>();
  const double* sums =
      cpu::ReduceRows(stream, rows, d, 3.0 * d, [&](int64_t begin, int64_t end, double* partial) {
        for (int64_t i = begin; i < end; ++i) {
          const Summands<T> s{x[i], addend.absent() ? nullptr : addend[i]};
          const T* base_row = base.absent() ? nullptr : base[i];
          const T* base2_row = base2.absent() ? nullptr : base2[i];
          T* dx_row = dx[dx_index ? dx_index[i] : i];
          T* dx2_row = dx2.absent() ? nullptr : dx2[i];
          const auto row = s.addend ? BackwardRow<T, true> : BackwardRow<T, false>;
          row(s, dy[i], weight, rstd[i], d, base_row, dx_row, base2_row, dx2_row, partial);
        }
      });
  S* dweight = op.dweight.data<S>();
  for (int64_t j = 0; j < d; ++j) dweight[j] += static_cast<S>(sums[j]);
}

}  // namespace

void RunOnCpu(const RmsNorm& operation, CpuStream& stream) {
  cpu::Dispatch(operation.y.dtype(),
                [&](auto type) { Forward<decltype(type)>(operation, stream); });
}

void RunOnCpu(const RmsNormBackward& operation, CpuStream& stream) {
  cpu::Dispatch(operation.dy.dtype(),
                [&](auto type) { Backward<decltype(type)>(operation, stream); });
}

}  // namespace fathom
