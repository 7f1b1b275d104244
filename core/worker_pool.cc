#include "core/worker_pool.h"

#include <emmintrin.h>

#include "core/check.h"

namespace fathom {
namespace {

constexpr uint32_t kThreadBits = 10;
constexpr uint32_t kThreadMask = (1u << kThreadBits) - 1;
constexpr uint32_t kStop = 0;  // threads of a run that ends the workers

// Waits until `value` is not `old`: awake for about 30 microseconds, then asleep.
template <class T>
T WaitForChange(const std::atomic<T>& value, T old) {
  constexpr int kSpins = 600;
  for (int i = 0; i < kSpins; ++i) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    _mm_pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(int threads) {
  FATHOM_CHECK(threads >= 1 && threads <= static_cast<int>(kThreadMask)) << threads << " threads";
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

WorkerPool::~WorkerPool() {
  run_.store(((run_.load() >> kThreadBits) + 1) << kThreadBits | kStop, std::memory_order_release);
  run_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::RunErased(int threads, Function function, const void* body) {
  FATHOM_CHECK(threads >= 1 && threads <= this->threads());
  if (threads > 1) {
    function_ = function;
    body_ = body;
    unfinished_.store(threads - 1, std::memory_order_relaxed);
    const uint32_t number = (run_.load(std::memory_order_relaxed) >> kThreadBits) + 1;
    run_.store(number << kThreadBits | static_cast<uint32_t>(threads), std::memory_order_release);
    run_.notify_all();
  }
  function(body, 0);
  if (threads == 1) return;
  int32_t left = unfinished_.load(std::memory_order_acquire);
  while (left != 0) left = WaitForChange(unfinished_, left);
}

void WorkerPool::Work(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = WaitForChange(run_, seen);
    const uint32_t threads = seen & kThreadMask;
    if (threads == kStop) return;
    // Those who take part are waited for, so function and body are this run's.
    if (thread >= static_cast<int>(threads)) continue;
    function_(body_, thread);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

}  // namespace fathom
