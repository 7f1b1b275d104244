#include "core/parallel_for.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace fathom {
namespace {

TEST(ParallelForTest, EachIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool workers(threads);
    for (const int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      EXPECT_TRUE(ParallelFor(workers, count, [&](int64_t i) {
                    ++calls[i];
                    return absl::OkStatus();
                  }).ok());
      for (const std::atomic<int>& of_index : calls) ASSERT_EQ(of_index, 1);
    }
  }
}

// Index 10 fails late, when 11 and 12 have failed already.
TEST(ParallelForTest, TheLowestFailureCounts) {
  for (const int threads : {1, 3}) {
    WorkerPool workers(threads);
    std::atomic<int> calls{0};
    const absl::Status status = ParallelFor(workers, 1000, [&](int64_t i) {
      ++calls;
      if (i < 10) return absl::OkStatus();
      if (i == 10) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return absl::DataLossError(std::to_string(i));
    });
    EXPECT_EQ(status, absl::DataLossError("10"));
    EXPECT_LE(calls, 10 + threads);
  }
}

}  // namespace
}  // namespace fathom
