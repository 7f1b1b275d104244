#include "kernels/swiglu.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

constexpr double kWorkPerElement = 4;  // an exponential and a division

template <class T>
void ForwardRow(const T* __restrict gate_up, int64_t f, T* __restrict y) {
  using S = cpu::Stat<T>;
  for (int64_t j = 0; j < f; ++j) {
    const S gate = static_cast<S>(gate_up[j]);
    y[j] = static_cast<T>(gate * cpu::Sigmoid(gate) * static_cast<S>(gate_up[f + j]));
  }
}

template <class T>
void BackwardRow(const T* __restrict gate_up, const T* __restrict dy, int64_t f,
                 T* __restrict d_gate_up, T* __restrict y) {
  using S = cpu::Stat<T>;
  for (int64_t j = 0; j < f; ++j) {
    const S gate = static_cast<S>(gate_up[j]);
    const S up = static_cast<S>(gate_up[f + j]);
    const S d = static_cast<S>(dy[j]);
    const S sigmoid = cpu::Sigmoid(gate);
    const S silu = gate * sigmoid;
    y[j] = static_cast<T>(silu * up);
    d_gate_up[f + j] = static_cast<T>(d * silu);
    d_gate_up[j] = static_cast<T>(d * up * (sigmoid + silu * (S(1) - sigmoid)));
  }
}

}  // namespace

void RunOnCpu(const SwiGlu& operation, CpuStream& stream) {
  const SwiGlu& op = operation;
  const int64_t f = op.y.dim(1);
  FATHOM_CHECK_EQ(op.gate_up.dim(1), 2 * f);
  cpu::Dispatch(op.y.dtype(), [&](auto type) {
    using T = decltype(type);
    const cpu::RowsOf<T> gate_up(op.gate_up), y(op.y);
    cpu::ParallelFor(stream, cpu::RowsInUse(op.count, op.y.dim(0)), kWorkPerElement * f,
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t i = begin; i < end; ++i) ForwardRow(gate_up[i], f, y[i]);
                     });
  });
}

void RunOnCpu(const SwiGluBackward& operation, CpuStream& stream) {
  const SwiGluBackward& op = operation;
  const int64_t f = op.y.dim(1);
  FATHOM_CHECK_EQ(op.gate_up.dim(1), 2 * f);
  cpu::Dispatch(op.y.dtype(), [&](auto type) {
    using T = decltype(type);
    const cpu::RowsOf<T> gate_up(op.gate_up), dy(op.dy), d_gate_up(op.d_gate_up), y(op.y);
    cpu::ParallelFor(stream, cpu::RowsInUse(op.count, op.y.dim(0)), 2 * kWorkPerElement * f,
                     [&](int64_t begin, int64_t end, int) {
                       for (int64_t i = begin; i < end; ++i) {
                         BackwardRow(gate_up[i], dy[i], f, d_gate_up[i], y[i]);
                       }
                     });
  });
}

}  // namespace fathom
