#include "kernels/router.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sum.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

// log(1 + e^-|u|) without loss for large |u|.
template <class S>
S SoftplusOfMinus(S magnitude) {
  return std::log1p(cpu::Exp(-magnitude));
}

template <class S>
void Loss(const RouterLoss& op, CpuStream& stream) {
  const S* u = op.u.data<S>();
  const int32_t* index = op.index.data<int32_t>();
  // As if nothing were selected, then what the selected rows change: -u each.
  const double all = cpu::BlockedSum(stream, op.u.elements(), [&](int64_t i) -> double {
    return static_cast<double>(u[i] > 0 ? u[i] : S(0)) + SoftplusOfMinus(std::abs(u[i]));
  });
  const double selected = cpu::BlockedSum(stream, cpu::RowsInUse(op.count, op.index.elements()),
                                          [&](int64_t i) -> double { return u[index[i]]; });
  *op.loss.data<double>() += op.weight * (all - selected);
}

template <class S>
void LogitGradient(const RouterLogitGradient& op, CpuStream& stream) {
  const S* u = op.u.data<S>();
  S* ds = op.ds.data<S>();
  const S weight = static_cast<S>(op.weight);
  cpu::ParallelFor(stream, op.u.elements(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) ds[i] = weight * cpu::Sigmoid(u[i]);
  });
  const int32_t* index = op.index.data<int32_t>();
  const S* dz = cpu::DataOf<S>(op.dz);
  cpu::ParallelFor(stream, op.index.elements(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[i];
      // sigmoid(u) - 1 = -sigmoid(-u), which keeps its digits for large u.
      ds[row] = -weight * cpu::Sigmoid(-u[row]) + (dz ? dz[i] : S(0));
    }
  });
}

template <class T>
void Backward(const RouterBackward& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t d = op.x.dim(1);
  const RowsOf<T> x(op.x), dx(op.dx);
  const S* w = op.w.data<S>();
  const S* ds = op.ds.data<S>();
  const double* sums = cpu::ReduceRows(
      stream, op.x.dim(0), d, 2.0 * d, [&](int64_t begin, int64_t end, double* partial) {
        for (int64_t i = begin; i < end; ++i) {
          const T* __restrict x_row = x[i];
          T* __restrict dx_row = dx[i];
          const S gradient = ds[i];
          for (int64_t j = 0; j < d; ++j) {
            dx_row[j] = static_cast<T>(static_cast<S>(dx_row[j]) + gradient * w[j]);
          }
          for (int64_t j = 0; j < d; ++j) partial[j] += gradient * static_cast<S>(x_row[j]);
        }
      });
  S* dw = op.dw.data<S>();
  for (int64_t j = 0; j < d; ++j) dw[j] += static_cast<S>(sums[j]);
}

}  // namespace

void RunOnCpu(const RouterLogits& operation, CpuStream& stream) {
  const RouterLogits& op = operation;
  cpu::Dispatch(op.x.dtype(), [&](auto type) {
    using T = decltype(type);
    using S = cpu::Stat<T>;
    const RowsOf<T> x(op.x);
    const S* w = op.w.data<S>();
    S* s = op.s.data<S>();
    const int64_t d = op.x.dim(1);
    cpu::ParallelFor(stream, op.x.dim(0), d / 2.0, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = x[i];
        s[i] = cpu::LaneSum<S>(d, [&](int64_t j) { return static_cast<S>(row[j]) * w[j]; });
      }
    });
  });
}

void RunOnCpu(const AdjustLogits& operation, CpuStream& stream) {
  const AdjustLogits& op = operation;
  cpu::DispatchStatistics(op.z.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* s = op.s.data<S>();
    const S* counts = op.counts.data<S>();
    S* z = op.z.data<S>();
    const S tau = static_cast<S>(op.tau);
    cpu::ParallelFor(stream, op.z.elements(), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) z[i] = s[i] - tau * counts[i];
    });
  });
}

void RunOnCpu(const DescribeSelection& operation, CpuStream&) {
  const DescribeSelection& op = operation;
  const int32_t* index = op.index.data<int32_t>();
  const int64_t selected = cpu::RowsInUse(op.count, op.index.elements());
  const int32_t* row_positions = op.row_positions.data<int32_t>();
  int32_t* positions = op.positions.data<int32_t>();
  cpu::DispatchStatistics(op.counts.dtype(), [&](auto type) {
    using S = decltype(type);
    S* counts = op.counts.data<S>();
    for (int64_t i = 0; i < selected; ++i) {
      counts[index[i]] += static_cast<S>(op.increment);
      positions[i] = row_positions[index[i]];
    }
  });
  const int32_t* borders = op.borders.data<int32_t>();
  int32_t* segments = op.segments.data<int32_t>();
  for (int64_t j = 0; j < op.borders.elements(); ++j) {
    segments[j] = std::lower_bound(index, index + selected, borders[j]) - index;
  }
}

void RunOnCpu(const RouterLoss& operation, CpuStream& stream) {
  cpu::DispatchStatistics(operation.u.dtype(),
                          [&](auto type) { Loss<decltype(type)>(operation, stream); });
}

void RunOnCpu(const RouterLogitGradient& operation, CpuStream& stream) {
  cpu::DispatchStatistics(operation.u.dtype(),
                          [&](auto type) { LogitGradient<decltype(type)>(operation, stream); });
}

void RunOnCpu(const RouterBackward& operation, CpuStream& stream) {
  cpu::Dispatch(operation.x.dtype(),
                [&](auto type) { Backward<decltype(type)>(operation, stream); });
}

}  // namespace fathom
