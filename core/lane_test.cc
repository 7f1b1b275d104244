#include "core/lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace fathom {
namespace {

using Turn = std::pair<int, int>;  // (lane, how often it has yielded)

// Runs one lane for each entry of `yields`, which says how often it yields, and returns the turns
// in the order in which they were taken.
std::vector<Turn> TurnsOf(Lanes& lanes, const std::vector<int>& yields) {
  std::vector<Turn> turns;
  lanes.Run(static_cast<int>(yields.size()), [&](int lane) {
    for (int turn = 0; turn < yields[lane]; ++turn) {
      turns.emplace_back(lane, turn);
      lanes.Yield();
    }
    turns.emplace_back(lane, yields[lane]);
  });
  return turns;
}

// The round robin: by turn, then by lane, without lanes that have finished.
std::vector<Turn> RoundRobin(const std::vector<int>& yields) {
  std::vector<Turn> turns;
  for (int turn = 0; turn <= *std::max_element(yields.begin(), yields.end()); ++turn) {
    for (int lane = 0; lane < static_cast<int>(yields.size()); ++lane) {
      if (turn <= yields[lane]) turns.emplace_back(lane, turn);
    }
  }
  return turns;
}

TEST(Lanes, TakeTurnsInAFixedRoundRobin) {
  Lanes lanes;
  EXPECT_EQ(TurnsOf(lanes, {2, 2}),
            (std::vector<Turn>{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(TurnsOf(lanes, {0, 3, 1}),
            (std::vector<Turn>{{0, 0}, {1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {1, 3}}));
  for (const std::vector<int>& yields : std::vector<std::vector<int>>{
           {5, 5, 5, 5}, {0, 0, 0}, {0, 7}, {7, 0}, {1, 2, 3, 4, 5}, {9, 0, 4, 0, 9, 1}}) {
    EXPECT_EQ(TurnsOf(lanes, yields), RoundRobin(yields));
  }
}

TEST(Lanes, CurrentIsTheLaneThatRuns) {
  Lanes lanes;
  EXPECT_EQ(lanes.current(), 0);
  lanes.Run(3, [&](int lane) {
    for (int turn = 0; turn < 4; ++turn) {
      EXPECT_EQ(lanes.current(), lane);
      lanes.Yield();
    }
    EXPECT_EQ(lanes.current(), lane);
  });
  EXPECT_EQ(lanes.current(), 0);
  lanes.Run(1, [&](int) { EXPECT_EQ(lanes.current(), 0); });
}

// Where the caller's frame lies.
__attribute__((noinline)) uintptr_t StackAddress() {
  return reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
}

TEST(Lanes, OneLaneRunsOnTheCallersStack) {
  Lanes lanes;
  const uintptr_t outside = StackAddress();
  int calls = 0;
  lanes.Run(1, [&](int lane) {
    EXPECT_EQ(lane, 0);
    lanes.Yield();
    ++calls;
    const uintptr_t inside = StackAddress();
    EXPECT_LT(inside, outside);
    EXPECT_GT(inside, outside - 16384);
  });
  EXPECT_EQ(calls, 1);
}

TEST(Lanes, YieldOutsideOfARunDoesNothing) {
  Lanes lanes;
  lanes.Yield();
  EXPECT_EQ(TurnsOf(lanes, {1, 1}), RoundRobin({1, 1}));
  lanes.Yield();
}

TEST(Lanes, StacksAreKeptForLaterRuns) {
  Lanes lanes;
  // Two addresses of one stack are less than its size apart.
  std::vector<std::set<uintptr_t>> addresses(4);
  int64_t sum = 0;
  for (int run = 0; run < 400; ++run) {
    lanes.Run(run % 4 + 1, [&](int lane) {
      if (run % 4 > 0) addresses[lane].insert(StackAddress());
      lanes.Yield();
      sum += lane + 1;
    });
  }
  EXPECT_EQ(sum, 100 * (1 + 3 + 6 + 10));
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_LT(*addresses[lane].rbegin() - *addresses[lane].begin(), Lanes::kStackBytes);
    for (int other = 0; other < lane; ++other) {
      const uintptr_t a = *addresses[lane].begin();
      const uintptr_t b = *addresses[other].begin();
      EXPECT_GE(std::max(a, b) - std::min(a, b), Lanes::kStackBytes);
    }
  }
}

// 1 + ... + depth, one call and one turn for each; each frame holds about 256 bytes across its
// turn.
__attribute__((noinline)) int64_t SumDownTo(int64_t depth, Lanes& lanes) {
  if (depth == 0) return 0;
  volatile int64_t frame[32];
  for (int64_t i = 0; i < 32; ++i) frame[i] = depth * 1000 + i;
  if (depth % 16 == 0) lanes.Yield();
  const int64_t below = SumDownTo(depth - 1, lanes);
  for (int64_t i = 0; i < 32; ++i) {
    if (frame[i] != depth * 1000 + i) return -1;  // a frame was overwritten
  }
  return below + frame[0] / 1000;
}

TEST(Lanes, DeepCallStacksSurviveTheTurnsOfOthers) {
  Lanes lanes;
  constexpr int64_t kDepth = 1000;
  for (int run = 0; run < 3; ++run) {
    int64_t sums[3] = {};
    lanes.Run(3, [&](int lane) { sums[lane] = SumDownTo(kDepth + lane, lanes); });
    for (int lane = 0; lane < 3; ++lane) {
      EXPECT_EQ(sums[lane], (kDepth + lane) * (kDepth + lane + 1) / 2);
    }
  }
}

// As a lane's body holds vectors: they must be freed when it returns, and not before.
TEST(Lanes, ObjectsOnTheirStacksLiveUntilTheLaneReturns) {
  Lanes lanes;
  auto token = std::make_shared<int>(0);
  std::vector<int64_t> owners;
  lanes.Run(2, [&](int) {
    const std::shared_ptr<int> mine = token;
    lanes.Yield();
    owners.push_back(token.use_count());
  });
  EXPECT_EQ(owners, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(token.use_count(), 1);
}

TEST(Lanes, ThreadsHaveTheirOwn) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&wrong, thread] {
      Lanes lanes;
      for (int run = 0; run < 200; ++run) {
        const std::vector<int> yields = {thread + run % 3, 2, run % 5};
        if (TurnsOf(lanes, yields) != RoundRobin(yields)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

// An object may move to another thread between runs.
TEST(Lanes, RunOnAnotherThread) {
  Lanes lanes;
  EXPECT_EQ(TurnsOf(lanes, {1, 2}), RoundRobin({1, 2}));
  std::vector<Turn> turns;
  std::thread([&] { turns = TurnsOf(lanes, {2, 1}); }).join();
  EXPECT_EQ(turns, RoundRobin({2, 1}));
}

TEST(LanesDeathTest, MisuseEndsTheProcess) {
  Lanes lanes;
  EXPECT_DEATH(lanes.Run(0, [](int) {}), "0 lanes");
  EXPECT_DEATH(lanes.Run(2, [&](int) { lanes.Run(2, [](int) {}); }), "inside of a run");
  EXPECT_DEATH(lanes.Run(1, [&](int) { lanes.Run(1, [](int) {}); }), "inside of a run");
  EXPECT_DEATH(lanes.Run(2, [&](int) { std::thread([&] { lanes.Yield(); }).join(); }),
               "runs no lane");
  EXPECT_DEATH(lanes.Run(2, [](int) { throw 1; }), "");
  EXPECT_DEATH(lanes.Run(1, [](int) { throw 1; }), "");
}

}  // namespace
}  // namespace fathom
