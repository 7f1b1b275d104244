#include "kernels/expert_rows.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

// The row of x that a slot names.
template <class T>
T* AtSlot(const RowsOf<T>& x, const Tensor& of, int32_t slot) {
  FATHOM_CHECK(slot >= 0 && slot < of.dim(0)) << "slot " << slot << " of " << of.dim(0);
  return x[slot];
}

template <class T>
void Combine(const CombineExperts& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  constexpr int64_t kColumns = 256;  // whose sums stay in the cache
  const RowsOf<T> x(op.x), y(op.y);
  const RowsOf<int32_t> slot(op.slot);
  const RowsOf<S> weights(op.weights);
  const int64_t routed = op.slot.dim(1), d = op.y.dim(1);
  const auto combine = [&](int64_t i, int64_t first) {
    const int64_t width = std::min(kColumns, d - first);
    S sums[kColumns] = {};
    for (int64_t j = 0; j < routed; ++j) {
      const T* from = AtSlot(x, op.x, slot[i][j]) + first;
      const S weight = weights.absent() ? S(1) : weights[i][j];
      for (int64_t c = 0; c < width; ++c) sums[c] += weight * static_cast<S>(from[c]);
    }
    T* to = y[i] + first;
    for (int64_t c = 0; c < width; ++c) to[c] = static_cast<T>(static_cast<S>(to[c]) + sums[c]);
  };
  cpu::ParallelFor(stream, cpu::RowsInUse(op.count, op.y.dim(0)), routed * d,
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) {
                       for (int64_t first = 0; first < d; first += kColumns) combine(i, first);
                     }
                   });
}

template <class T>
void CombineBackward(const CombineExpertsBackward& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const RowsOf<T> dy(op.dy), x(op.x), dx(op.dx);
  const RowsOf<int32_t> slot(op.slot);
  const RowsOf<S> weights(op.weights), d_weights(op.d_weights);
  const int64_t routed = op.slot.dim(1), d = op.dy.dim(1);
  const auto backward_of_row = [&](int64_t i) {
    const T* from = dy[i];
    for (int64_t j = 0; j < routed; ++j) {
      const S weight = weights.absent() ? S(1) : weights[i][j];
      T* to = AtSlot(dx, op.dx, slot[i][j]);
      for (int64_t c = 0; c < d; ++c) to[c] = static_cast<T>(weight * static_cast<S>(from[c]));
      if (d_weights.absent()) continue;
      const T* forward = AtSlot(x, op.x, slot[i][j]);
      d_weights[i][j] = cpu::LaneSum<S>(
          d, [&](int64_t c) { return static_cast<S>(from[c]) * static_cast<S>(forward[c]); });
    }
  };
  cpu::ParallelFor(stream, cpu::RowsInUse(op.count, op.dy.dim(0)), 2.0 * routed * d,
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t i = begin; i < end; ++i) backward_of_row(i);
                   });
}

}  // namespace

void RunOnCpu(const SortByExpert& operation, CpuStream& stream) {
  const SortByExpert& op = operation;
  const int64_t rows = cpu::RowsInUse(op.count, op.experts.dim(0)), routed = op.experts.dim(1);
  const RowsOf<int32_t> chosen(op.experts), slot(op.slot);
  FATHOM_CHECK(op.row.elements() >= rows * routed)
      << rows << " rows of " << routed << " experts, places for " << op.row.elements();
  int32_t largest = -1;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < routed; ++j) {
      FATHOM_CHECK(chosen[i][j] >= 0) << "expert " << chosen[i][j];
      largest = std::max(largest, chosen[i][j]);
    }
  }
  // places[e] is the next free place among those of expert e; first it counts those of e - 1.
  const int64_t experts = static_cast<int64_t>(largest) + 1;
  int32_t* places = static_cast<int32_t*>(stream.Scratch(0, (experts + 1) * sizeof(int32_t)));
  std::fill(places, places + experts + 1, 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < routed; ++j) ++places[chosen[i][j] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) places[e + 1] += places[e];
  int32_t* row = op.row.data<int32_t>();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < routed; ++j) {
      const int32_t place = places[chosen[i][j]]++;
      row[place] = i;
      slot[i][j] = place;
    }
  }
}

void RunOnCpu(const CombineExperts& operation, CpuStream& stream) {
  FATHOM_CHECK_EQ(operation.x.dim(1), operation.y.dim(1));
  cpu::Dispatch(operation.y.dtype(),
                [&](auto type) { Combine<decltype(type)>(operation, stream); });
}

void RunOnCpu(const CombineExpertsBackward& operation, CpuStream& stream) {
  FATHOM_CHECK_EQ(operation.dx.dim(1), operation.dy.dim(1));
  cpu::Dispatch(operation.dy.dtype(),
                [&](auto type) { CombineBackward<decltype(type)>(operation, stream); });
}

void RunOnCpu(const RowsInWindow& operation, CpuStream&) {
  FATHOM_CHECK(operation.begin <= operation.end);
  const int64_t count = *operation.count.data<int32_t>();
  *operation.window_count.data<int32_t>() = static_cast<int32_t>(
      std::clamp<int64_t>(count - operation.begin, 0, operation.end - operation.begin));
}

void RunOnCpu(const ExpertMajorOrder& operation, CpuStream& stream) {
  const ExpertMajorOrder& op = operation;
  const int64_t sources = op.counts.dim(0), experts = op.counts.dim(1);
  const RowsOf<int32_t> counts(op.counts);
  // Where the rows of each source and expert begin among those received.
  int64_t* begins =
      static_cast<int64_t*>(stream.Scratch(0, (sources * experts + 1) * sizeof(int64_t)));
  int64_t rows = 0;
  for (int64_t s = 0; s < sources; ++s) {
    for (int64_t e = 0; e < experts; ++e) {
      FATHOM_CHECK(counts[s][e] >= 0) << counts[s][e] << " rows for expert " << e;
      begins[s * experts + e] = rows;
      rows += counts[s][e];
    }
  }
  FATHOM_CHECK(rows <= op.to_expert_major.elements() && rows <= op.to_source_major.elements())
      << rows << " rows in orders of " << op.to_expert_major.elements() << " and "
      << op.to_source_major.elements();
  int32_t* to_expert_major = op.to_expert_major.data<int32_t>();
  int32_t* to_source_major = op.to_source_major.data<int32_t>();
  int64_t place = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t s = 0; s < sources; ++s) {
      const int64_t begin = begins[s * experts + e];
      for (int64_t received = begin; received < begin + counts[s][e]; ++received, ++place) {
        to_expert_major[place] = received;
        to_source_major[received] = place;
      }
    }
  }
}

}  // namespace fathom
