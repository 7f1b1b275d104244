#include "kernels/rotary.h"

#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

constexpr int64_t kMaximumHeadDim = 1024;

// What every head of a row shares.
template <class T>
struct Angles {
  const cpu::Stat<T>* cosine;
  const cpu::Stat<T>* sine;
};

template <class T>
Angles<T> AnglesAt(const Tensor& cosine, const Tensor& sine, int64_t position) {
  using S = cpu::Stat<T>;
  FATHOM_CHECK(position >= 0 && position < cosine.dim(0))
      << "position " << position << " of tables for " << cosine.dim(0);
  return {RowsOf<S>(cosine)[position], RowsOf<S>(sine)[position]};
}

template <class T>
cpu::Stat<T> ForwardHead(const T* x, const cpu::Stat<T>* weight, double eps,
                         const Angles<T>& angles, int64_t h, T* y) {
  using S = cpu::Stat<T>;
  const S squares = cpu::LaneSum<S>(h, [&](int64_t j) {
    const S value = static_cast<S>(x[j]);
    return value * value;
  });
  const S rstd = S(1) / std::sqrt(squares / static_cast<S>(h) + static_cast<S>(eps));
  const int64_t half = h / 2;
#pragma GCC ivdep  // y is x itself or apart from it
  for (int64_t j = 0; j < half; ++j) {
    const S low = static_cast<S>(x[j]) * rstd * weight[j];
    const S high = static_cast<S>(x[j + half]) * rstd * weight[j + half];
    y[j] = static_cast<T>(low * angles.cosine[j] - high * angles.sine[j]);
    y[j + half] = static_cast<T>(high * angles.cosine[j] + low * angles.sine[j]);
  }
  return rstd;
}

template <class T>
void BackwardHead(const T* __restrict x, const cpu::Stat<T>* __restrict weight, cpu::Stat<T> rstd,
                  const Angles<T>& angles, int64_t h, const T* dy, T* dx,
                  double* __restrict dweight) {
  using S = cpu::Stat<T>;
  alignas(64) S g[kMaximumHeadDim];  // d(loss)/du, then times the weight
  alignas(64) S unit[kMaximumHeadDim];
  const int64_t half = h / 2;
  for (int64_t j = 0; j < half; ++j) {
    const S low = static_cast<S>(dy[j]);
    const S high = static_cast<S>(dy[j + half]);
    g[j] = low * angles.cosine[j] + high * angles.sine[j];
    g[j + half] = high * angles.cosine[j] - low * angles.sine[j];
  }
  for (int64_t j = 0; j < h; ++j) {
    unit[j] = static_cast<S>(x[j]) * rstd;
    dweight[j] += g[j] * unit[j];
    g[j] *= weight[j];
  }
  const S mean = cpu::LaneSum<S>(h, [&](int64_t j) { return g[j] * unit[j]; }) / static_cast<S>(h);
  for (int64_t j = 0; j < h; ++j) dx[j] = static_cast<T>(rstd * (g[j] - unit[j] * mean));
}

template <class T>
void Forward(const HeadNormRotary& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t h = op.weight.dim(0);
  const int64_t heads = op.x.dim(1) / h;
  const RowsOf<T> x(op.x), y(op.y);
  const RowsOf<S> rstd(op.rstd);
  const S* weight = op.weight.data<S>();
  const int32_t* positions = op.positions.data<int32_t>();
  cpu::ParallelFor(stream, cpu::RowsInUse(op.count, op.x.dim(0)), 2 * heads * h,
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       const Angles<T> angles = AnglesAt<T>(op.cosine, op.sine, positions[i]);
                       for (int64_t head = 0; head < heads; ++head) {
                         rstd[i][head] = ForwardHead(x[i] + head * h, weight, op.eps, angles, h,
                                                     y[i] + head * h);
                       }
                     }
                   });
}

template <class T>
void Backward(const HeadNormRotaryBackward& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t h = op.weight.dim(0);
  const int64_t heads = op.x.dim(1) / h;
  FATHOM_CHECK(h <= kMaximumHeadDim) << "head width " << h;
  const RowsOf<T> x(op.x), dy(op.dy), dx(op.dx);
  const RowsOf<S> rstd(op.rstd);
  const S* weight = op.weight.data<S>();
  const int32_t* positions = op.positions.data<int32_t>();
  const double* sums =
      cpu::ReduceRows(stream, cpu::RowsInUse(op.count, op.x.dim(0)), h, 4.0 * heads * h,
                      [&](int64_t begin, int64_t end, double* partial) {
                        for (int64_t i = begin; i < end; ++i) {
                          const Angles<T> angles = AnglesAt<T>(op.cosine, op.sine, positions[i]);
                          for (int64_t head = 0; head < heads; ++head) {
                            BackwardHead(x[i] + head * h, weight, rstd[i][head], angles, h,
                                         dy[i] + head * h, dx[i] + head * h, partial);
                          }
                        }
                      });
  S* dweight = op.dweight.data<S>();
  for (int64_t j = 0; j < h; ++j) dweight[j] += static_cast<S>(sums[j]);
}

}  // namespace

void RunOnCpu(const HeadNormRotary& operation, CpuStream& stream) {
  FATHOM_CHECK_EQ(operation.cosine.dim(1) * 2, operation.weight.dim(0));
  cpu::Dispatch(operation.x.dtype(),
                [&](auto type) { Forward<decltype(type)>(operation, stream); });
}

void RunOnCpu(const HeadNormRotaryBackward& operation, CpuStream& stream) {
  FATHOM_CHECK_EQ(operation.cosine.dim(1) * 2, operation.weight.dim(0));
  cpu::Dispatch(operation.x.dtype(),
                [&](auto type) { Backward<decltype(type)>(operation, stream); });
}

void RunOnCpu(const RotaryTables& operation, CpuStream& stream) {
  const RotaryTables& op = operation;
  cpu::DispatchStatistics(op.cosine.dtype(), [&](auto type) {
    using S = decltype(type);
    const RowsOf<S> cosine(op.cosine), sine(op.sine);
    const int64_t half = op.cosine.dim(1);
    cpu::ParallelFor(stream, op.cosine.dim(0), 40 * half, [&](int64_t begin, int64_t end, int) {
      for (int64_t j = 0; j < half; ++j) {
        const double frequency = std::pow(op.theta, -static_cast<double>(j) / half);
        for (int64_t p = begin; p < end; ++p) {
          cosine[p][j] = static_cast<S>(std::cos(p * frequency));
          sine[p][j] = static_cast<S>(std::sin(p * frequency));
        }
      }
    });
  });
}

}  // namespace fathom
