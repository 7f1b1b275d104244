#include "parallel/rank_info.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/gather_text.h"
#include "parallel/in_process_communicator.h"
#include "parallel/local_communicator.h"

namespace fathom {
namespace {

TEST(ShortListTest, RunsAndSingleNumbers) {
  const std::vector<std::pair<std::vector<int>, std::string>> cases = {
      {{}, ""},
      {{5}, "5"},
      {{0, 1}, "0-1"},
      {{0, 1, 2, 3, 8}, "0-3,8"},
      {{0, 2, 4}, "0,2,4"},
      {{7, 9, 10, 11, 130}, "7,9-11,130"},
  };
  for (const auto& [numbers, text] : cases) {
    EXPECT_EQ(ShortList(numbers), text);
    const auto parsed = ParseShortList(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, numbers);
  }
}

TEST(ShortListTest, RefusesWhatIsNoList) {
  for (const char* text : {"x", "3-1", "1,", ",1", "1-", "-1", "1,1", "4,2-3", "0-3,3"}) {
    EXPECT_FALSE(ParseShortList(text).ok()) << text;
  }
}

// No two ranks alike.
RankInfo InfoOf(int rank) {
  RankInfo info;
  info.host = std::string(rank % 5, 'n') + std::to_string(rank);
  for (int core = 0; core < rank; ++core) info.cores.push_back(2 * core);
  info.threads = rank + 1;
  for (int i = 0; i < rank % 3; ++i) info.settings.push_back("UCX_" + std::to_string(i) + "= a=b");
  return info;
}

void ExpectGathered(Communicator& communicator) {
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  const auto ranks = GatherRankInfo(communicator, *stream, InfoOf(communicator.rank()));
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_EQ(ranks->size(), communicator.size());
  for (int rank = 0; rank < communicator.size(); ++rank) EXPECT_EQ((*ranks)[rank], InfoOf(rank));
}

TEST(RankInfoTest, OneRank) { ExpectGathered(*NewLocalCommunicator()); }

TEST(RankInfoTest, EveryRankHearsOfEveryRank) {
  for (const int ranks : {2, 3, 8}) {
    auto world = NewInProcessWorld(ranks);
    std::vector<std::thread> threads;
    for (auto& communicator : world) {
      threads.emplace_back([&communicator] { ExpectGathered(*communicator); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

// None, less than a word, whole words.
TEST(GatherTextTest, TextsOfAnyLength) {
  auto world = NewInProcessWorld(10);
  std::vector<std::thread> threads;
  for (auto& communicator : world) {
    threads.emplace_back([&communicator] {
      CpuDevice device(1);
      const std::unique_ptr<Stream> stream = device.NewStream();
      const auto text = [](int rank) { return std::string(rank, static_cast<char>('a' + rank)); };
      const auto texts = AllGatherText(*communicator, *stream, text(communicator->rank()));
      ASSERT_TRUE(texts.ok()) << texts.status();
      for (int rank = 0; rank < 10; ++rank) EXPECT_EQ((*texts)[rank], text(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GatherTextTest, ErrorsAreReturned) {
  InProcessOptions options;
  options.watchdog = std::chrono::milliseconds(100);
  auto world = NewInProcessWorld(2, options);
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  const auto texts = AllGatherText(*world[0], *stream, "alone");
  EXPECT_EQ(texts.status().code(), absl::StatusCode::kDeadlineExceeded) << texts.status();
}

}  // namespace
}  // namespace fathom
