#include "core/worker_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace fathom {
namespace {

TEST(WorkerPool, EveryThreadRunsOnceInEachRun) {
  WorkerPool pool(4);
  for (int threads : {1, 2, 4, 3, 1, 4}) {
    for (int run = 0; run < 2000; ++run) {
      int calls[4] = {};
      pool.Run(threads, [&](int thread) { ++calls[thread]; });
      for (int thread = 0; thread < 4; ++thread) ASSERT_EQ(calls[thread], thread < threads);
    }
  }
}

TEST(WorkerPool, ResultsAreThereWhenRunReturns) {
  WorkerPool pool(3);
  std::vector<int64_t> numbers(30000);
  std::iota(numbers.begin(), numbers.end(), 1);
  int64_t sums[3];
  for (int run = 0; run < 200; ++run) {
    pool.Run(3, [&](int thread) {
      sums[thread] = std::accumulate(numbers.begin() + thread * 10000,
                                     numbers.begin() + (thread + 1) * 10000, int64_t{0});
    });
    ASSERT_EQ(sums[0] + sums[1] + sums[2], int64_t{30000} * 30001 / 2);
  }
}

TEST(WorkerPool, ManyPoolsAtOnce) {
  std::vector<std::thread> ranks;
  std::atomic<int64_t> total{0};
  for (int rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&] {
      WorkerPool pool(2);
      for (int run = 0; run < 500; ++run) pool.Run(2, [&](int) { ++total; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(total.load(), 8 * 500 * 2);
}

}  // namespace
}  // namespace fathom
