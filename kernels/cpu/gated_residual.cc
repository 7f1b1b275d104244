#include "kernels/gated_residual.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

// The gate of a row: what f is multiplied by (XMOD: a as well), and r = sigmoid(z).
template <class S>
struct RowGate {
  S factor = 1;
  S r = 1;
};

template <class S>
RowGate<S> GateOf(Gate gate, const S* z, S scale, int64_t row) {
  if (gate == Gate::kNone) return {};
  const S r = cpu::Sigmoid(z[row]);
  return {gate == Gate::kXMod ? scale * r : r, r};
}

template <class T>
cpu::Stat<T> ScaleOf(Gate gate, const Tensor& scale) {
  return gate == Gate::kXMod ? *scale.data<cpu::Stat<T>>() : cpu::Stat<T>(1);
}

// `a` is null when x already holds x + a.
template <class T>
void ForwardRow(Gate gate, cpu::Stat<T> factor, const T* x, const T* a, const T* f, int64_t d,
                T* y) {
  using S = cpu::Stat<T>;
  if (gate == Gate::kXMod) {
    for (int64_t j = 0; j < d; ++j) {
      y[j] = static_cast<T>(static_cast<S>(x[j]) +
                            factor * (static_cast<S>(a[j]) + static_cast<S>(f[j])));
    }
  } else if (a != nullptr) {
    for (int64_t j = 0; j < d; ++j) {
      y[j] = static_cast<T>((static_cast<S>(x[j]) + static_cast<S>(a[j])) +
                            factor * static_cast<S>(f[j]));
    }
  } else {
    for (int64_t j = 0; j < d; ++j) {
      y[j] = static_cast<T>(static_cast<S>(x[j]) + factor * static_cast<S>(f[j]));
    }
  }
}

template <class T>
void Forward(const GatedResidual& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const RowsOf<T> x(op.x), a(op.a), f(op.f), y(op.y);
  const S* z = cpu::DataOf<S>(op.z);
  const int32_t* index = cpu::DataOf<int32_t>(op.index);
  const S scale = ScaleOf<T>(op.gate, op.scale);
  const int64_t d = op.x.dim(1);
  cpu::ParallelFor(
      stream, cpu::RowsInUse(op.count, op.x.dim(0)), d, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = index ? index[i] : i;
          const S factor = GateOf(op.gate, z, scale, row).factor;
          ForwardRow(op.gate, factor, x[i], a.absent() ? nullptr : a[i], f[i], d, y[row]);
        }
      });
}

// d(loss)/d(factor) of a row: dy . f, or dy . (a + f).
template <class T>
cpu::Stat<T> FactorGradient(Gate gate, const T* dy, const T* a, const T* f, int64_t d) {
  using S = cpu::Stat<T>;
  if (gate == Gate::kXMod) {
    return cpu::LaneSum<S>(d, [&](int64_t j) {
      return static_cast<S>(dy[j]) * (static_cast<S>(a[j]) + static_cast<S>(f[j]));
    });
  }
  return cpu::LaneSum<S>(d,
                         [&](int64_t j) { return static_cast<S>(dy[j]) * static_cast<S>(f[j]); });
}

template <class T>
void Backward(const GatedResidualBackward& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const RowsOf<T> dy(op.dy), a(op.a), f(op.f), d_x(op.d_x), d_f(op.d_f);
  const S* z = cpu::DataOf<S>(op.z);
  S* dz = cpu::DataOf<S>(op.dz);
  const int32_t* index = cpu::DataOf<int32_t>(op.index);
  const S scale = ScaleOf<T>(op.gate, op.scale);
  const int64_t d = op.d_f.dim(1);
  const bool xmod = op.gate == Gate::kXMod;
  const double* d_scale = cpu::ReduceRows(
      stream, cpu::RowsInUse(op.count, op.d_f.dim(0)), 1, 2.0 * d,
      [&](int64_t begin, int64_t end, double* partial) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t row = index ? index[i] : i;
          const T* dy_row = dy[row];
          const RowGate<S> gate = GateOf(op.gate, z, scale, row);
          if (!d_x.absent()) std::copy_n(dy_row, d, d_x[i]);
          T* d_f_row = d_f[i];
          if (op.gate == Gate::kNone) {
            std::copy_n(dy_row, d, d_f_row);
            if (dz != nullptr) dz[i] = 0;
            continue;
          }
          const S gradient = FactorGradient(op.gate, dy_row, xmod ? a[i] : nullptr, f[i], d);
          dz[i] = gradient * (xmod ? scale : S(1)) * gate.r * (S(1) - gate.r);
          partial[0] += gradient * gate.r;
          for (int64_t j = 0; j < d; ++j) {
            d_f_row[j] = static_cast<T>(gate.factor * static_cast<S>(dy_row[j]));
          }
        }
      });
  if (xmod) *op.d_scale.data<S>() += static_cast<S>(*d_scale);
}

}  // namespace

void RunOnCpu(const GatedResidual& operation, CpuStream& stream) {
  FATHOM_CHECK(operation.gate != Gate::kXMod || !operation.a.absent())
      << "the XMOD gate needs x and a apart";
  cpu::Dispatch(operation.y.dtype(),
                [&](auto type) { Forward<decltype(type)>(operation, stream); });
}

void RunOnCpu(const GatedResidualBackward& operation, CpuStream& stream) {
  cpu::Dispatch(operation.dy.dtype(),
                [&](auto type) { Backward<decltype(type)>(operation, stream); });
}

}  // namespace fathom
