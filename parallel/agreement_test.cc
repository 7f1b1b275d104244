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

}  // namespace
}  // namespace fathom
