#include "runtime/data/ordered_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace fathom {
namespace {

using Work = OrderedWork<int, int>;

// Work whose cost differs from piece to piece, so that threads overtake each other.
int Square(int value) {
  volatile int sink = 0;
  for (int i = 0; i < (value * 7919) % 5000; ++i) sink = sink + i;
  return value * value;
}

TEST(OrderedWorkTest, WritesInOrderForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8}) {
    int next = 0;
    std::atomic<int> at_once{0}, most_in_flight{0}, in_flight{0};
    std::vector<int> written;
    Work work({.read =
                   [&](int* in) {
                     EXPECT_EQ(at_once++, 0);
                     *in = next++;
                     most_in_flight = std::max<int>(most_in_flight, ++in_flight);
                     --at_once;
                     return next <= 1000;
                   },
               .work = [](int, int in) { return Square(in); },
               .write =
                   [&](int out) {
                     written.push_back(out);
                     --in_flight;
                     return absl::OkStatus();
                   }});
    ASSERT_TRUE(work.Run(threads).ok());
    ASSERT_EQ(written.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(written[i], i * i);
    EXPECT_LE(most_in_flight, 2 * threads + 2);
  }
}

TEST(OrderedWorkTest, TheFirstErrorInTheOrderOfTheInputWins) {
  for (const int threads : {1, 2, 8}) {
    for (const int where : {0, 1, 2}) {  // read, work, write
      int next = 0;
      std::vector<int> written;
      Work work({.read = [&](int* in) -> absl::StatusOr<bool> {
                   *in = next++;
                   if (where == 0 && *in == 30) return absl::DataLossError("30");
                   return next <= 100;
                 },
                 .work = [&](int, int in) -> absl::StatusOr<int> {
                   Square(in);
                   if (where == 1 && in >= 30) return absl::DataLossError(std::to_string(in));
                   return in;
                 },
                 .write =
                     [&](int out) {
                       if (where == 2 && out == 30) return absl::DataLossError("30");
                       written.push_back(out);
                       return absl::OkStatus();
                     }});
      const absl::Status status = work.Run(threads);
      EXPECT_EQ(status, absl::DataLossError("30"));
      EXPECT_EQ(written.size(), 30u);
    }
  }
}

TEST(OrderedWorkTest, NothingToDo) {
  Work work({.read = [](int*) { return false; },
             .work = [](int, int in) { return in; },
             .write = [](int) { return absl::InternalError("there is nothing"); }});
  EXPECT_TRUE(work.Run(4).ok());
}

}  // namespace
}  // namespace fathom
