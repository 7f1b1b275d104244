#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "core/worker_pool.h"

namespace fathom {

// Calls body(i), which returns a status, for i from 0 to `count` - 1 on all of a pool's threads, in
// any order. After an error no further one is begun. The status is that of the lowest i that
// failed, as if they had run one after the other.
template <class Body>
absl::Status ParallelFor(WorkerPool& workers, int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  int64_t first_failed = count;
  absl::Status status;
  workers.Run(workers.threads(), [&](int) {
    while (!failed) {
      const int64_t i = next++;
      if (i >= count) return;
      absl::Status done = body(i);
      if (done.ok()) continue;
      failed = true;
      const std::lock_guard lock(mutex);
      if (i > first_failed) continue;
      first_failed = i;
      status = std::move(done);
    }
  });
  return status;
}

}  // namespace fathom
