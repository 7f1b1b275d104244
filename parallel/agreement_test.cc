#include "parallel/agreement.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/in_process_communicator.h"

namespace fathom {
namespace {

// What each of `ranks` ranks gets when rank 0 gives `mine` and the others something else.
std::vector<absl::StatusOr<std::string>> Hear(int ranks, const absl::StatusOr<std::string>& mine) {
  auto world = NewInProcessWorld(ranks);
  std::vector<absl::StatusOr<std::string>> heard(ranks, "nothing");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CpuDevice device(1);
      const std::unique_ptr<Stream> stream = device.NewStream();
      heard[rank] = FromFirstRank(*world[rank], *stream, rank == 0 ? mine : "of another rank");
    });
  }
  for (std::thread& thread : threads) thread.join();
  return heard;
}

// Texts that do and do not fill the words that they travel in.
TEST(AgreementTest, AllHaveTheTextOfTheFirst) {
  for (const std::string text : {"", "a", "runs", "runs/step_00000002"}) {
    for (const auto& heard : Hear(3, text)) {
      ASSERT_TRUE(heard.ok()) << heard.status();
      EXPECT_EQ(*heard, text);
    }
  }
}

TEST(AgreementTest, AnErrorOfTheFirstIsItsOwnAndEndsTheOthers) {
  const auto heard = Hear(3, absl::AlreadyExistsError("runs holds a run"));
  EXPECT_EQ(heard[0].status(), absl::AlreadyExistsError("runs holds a run"));
  for (int rank = 1; rank < 3; ++rank) {
    EXPECT_EQ(heard[rank].status(), absl::AbortedError("rank 0 cannot go on: runs holds a run"));
  }
}

// Without text, too, an error is one.
TEST(AgreementTest, AnErrorMayBeWithoutWords) {
  EXPECT_EQ(Hear(2, absl::UnavailableError(""))[1].status().code(), absl::StatusCode::kAborted);
}

// What each rank hears when each has its own text or failure.
std::vector<Agreement> Agree(const std::vector<absl::StatusOr<std::string>>& of_ranks) {
  const int ranks = static_cast<int>(of_ranks.size());
  auto world = NewInProcessWorld(ranks);
  std::vector<Agreement> heard(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      CpuDevice device(1);
      const std::unique_ptr<Stream> stream = device.NewStream();
      auto agreed = AgreeOverRanks(*world[rank], *stream, of_ranks[rank]);
      ASSERT_TRUE(agreed.ok()) << agreed.status();
      heard[rank] = *std::move(agreed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return heard;
}

TEST(AgreementTest, AllHearAll) {
  for (const Agreement& heard : Agree({"", "-a", "three"})) {
    EXPECT_TRUE(heard.status.ok()) << heard.status;
    EXPECT_EQ(heard.texts, (std::vector<std::string>{"", "-a", "three"}));
  }
}

TEST(AgreementTest, TheFirstFailureCounts) {
  const auto heard =
      Agree({"fine", absl::DataLossError("bad disk"), "", absl::NotFoundError("later")});
  EXPECT_EQ(heard[1].status, absl::DataLossError("bad disk"));
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(heard[rank].status, absl::AbortedError("rank 1: bad disk"));
  }
}

}  // namespace
}  // namespace fathom
