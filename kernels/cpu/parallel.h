#pragma once

#include <algorithm>
#include <atomic>

#include "core/cpu_device.h"

namespace fathom::cpu {

// What is worth a thread of its own, in elementary operations (one element read, computed on and
// written): waking a thread costs a few microseconds.
inline constexpr double kWorkOfAThread = 16384;

inline int ThreadsFor(CpuStream& stream, int64_t items, double work_per_item) {
  const double useful = std::min<double>(items, items * work_per_item / kWorkOfAThread);
  return std::max(1, static_cast<int>(std::min<double>(useful, stream.threads())));
}

// body(begin, end, thread) for ranges that together are 0 to items - 1, one per thread.
template <class Body>
void ParallelFor(CpuStream& stream, int64_t items, double work_per_item, const Body& body) {
  if (items <= 0) return;
  const int threads = ThreadsFor(stream, items, work_per_item);
  if (threads == 1) {
    body(int64_t{0}, items, 0);
    return;
  }
  stream.workers().Run(threads, [&](int thread) {
    const int64_t begin = items * thread / threads;
    const int64_t end = items * (thread + 1) / threads;
    if (begin < end) body(begin, end, thread);
  });
}

// body(task, thread) for uneven tasks, handed out one by one in ascending order.
template <class Body>
void ParallelTasks(CpuStream& stream, int64_t tasks, double work_per_task, const Body& body) {
  const int threads = ThreadsFor(stream, tasks, work_per_task);
  if (threads == 1) {
    for (int64_t task = 0; task < tasks; ++task) body(task, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  stream.workers().Run(threads, [&](int thread) {
    for (int64_t task = next++; task < tasks; task = next++) body(task, thread);
  });
}

// Column sums over rows, the same bits for any number of threads: body(begin, end, partial) adds
// rows begin to end - 1 to `partial`, [width] doubles. Blocks of rows depend on `rows` alone and
// are added in order. Returns the sums, valid until the next use of scratch; body uses none.
template <class Body>
const double* ReduceRows(CpuStream& stream, int64_t rows, int64_t width, double work_per_row,
                         const Body& body) {
  constexpr int64_t kMinimumRows = 32;
  constexpr int64_t kMaximumBlocks = 64;
  const int64_t block_rows = std::max(kMinimumRows, (rows + kMaximumBlocks - 1) / kMaximumBlocks);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  double* partials = static_cast<double*>(stream.Scratch(0, blocks * width * sizeof(double)));
  std::fill(partials, partials + width, 0.0);
  ParallelFor(stream, blocks, block_rows * work_per_row, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      double* partial = partials + block * width;
      std::fill(partial, partial + width, 0.0);
      const int64_t first = block * block_rows;
      body(first, std::min(rows, first + block_rows), partial);
    }
  });
  for (int64_t block = 1; block < blocks; ++block) {
    for (int64_t j = 0; j < width; ++j) partials[j] += partials[block * width + j];
  }
  return partials;
}

}  // namespace fathom::cpu
