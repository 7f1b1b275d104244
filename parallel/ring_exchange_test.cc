#include "parallel/ring_exchange.h"

#include <functional>
#include <latch>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/in_process_communicator.h"
#include "parallel/local_communicator.h"

namespace fathom {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLong(60000);

// "node0", "node1", ...: two ranks on each.
std::vector<std::string> Hosts(int ranks) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back("node" + std::to_string(rank / 2));
  return hosts;
}

// What each rank of `world` gets, without those that are `absent`.
std::vector<absl::Status> Exchange(std::vector<std::unique_ptr<Communicator>>& world,
                                   const std::vector<std::string>& hosts, milliseconds timeout,
                                   const std::set<int>& absent = {}) {
  std::vector<absl::Status> statuses(world.size());
  std::latch started(static_cast<std::ptrdiff_t>(world.size() - absent.size()));
  std::vector<std::thread> threads;
  for (auto& communicator : world) {
    const int rank = communicator->rank();
    if (absent.count(rank) > 0) continue;
    threads.emplace_back([&, rank] {
      CpuDevice device(1);
      const std::unique_ptr<Stream> stream = device.NewStream();
      started.arrive_and_wait();
      const absl::Status status = ExchangeAlongRing(*world[rank], *stream, hosts, timeout);
      statuses[rank] = DetachedCopy(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

bool Has(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

class RingTest : public testing::TestWithParam<int> {};

TEST_P(RingTest, AllRanksHearEachOther) {
  auto world = NewInProcessWorld(GetParam());
  for (const absl::Status& status : Exchange(world, Hosts(GetParam()), kLong)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

// A backend may hold up each operation until its other side is issued, one after the other. Plays
// the recorded orders under that rule to their end.
TEST_P(RingTest, OrderOfIssueNeverDeadlocks) {
  const int ranks = GetParam();
  auto world = NewInProcessWorld(ranks);
  std::vector<std::shared_ptr<CommunicationLog>> logs;
  for (auto& communicator : world) {
    logs.push_back(std::make_shared<CommunicationLog>());
    communicator->set_log(logs.back());
  }
  Exchange(world, Hosts(ranks), kLong);
  std::vector<std::vector<CommunicationLog::Record>> queues;
  for (const auto& log : logs) queues.push_back(log->records());
  int64_t left = 0;
  for (auto& queue : queues) {
    ASSERT_EQ(queue.size(), ranks == 1 ? 0 : 2);
    left += static_cast<int64_t>(queue.size());
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (int from = 0; from < ranks; ++from) {
      auto& sends = queues[from];
      if (sends.empty() || sends[0].collective != Collective::kSend) continue;
      auto& receives = queues[sends[0].peer];
      if (receives.empty() || receives[0].collective != Collective::kReceive) continue;
      if (receives[0].peer != from) continue;
      sends.erase(sends.begin());
      receives.erase(receives.begin());
      left -= 2;
      moved = true;
    }
  }
  EXPECT_EQ(left, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, RingTest, testing::Values(1, 2, 3, 8));

TEST(RingExchangeTest, OneRankIsAlone) {
  const auto communicator = NewLocalCommunicator();
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  EXPECT_TRUE(ExchangeAlongRing(*communicator, *stream, {"node0"}, kLong).ok());
}

TEST(RingExchangeTest, NeighboursNameTheSilentRankAndTheHosts) {
  auto world = NewInProcessWorld(8);
  const std::vector<absl::Status> statuses = Exchange(world, Hosts(8), milliseconds(2000), {4});
  for (const int rank : {0, 1, 2, 6, 7}) EXPECT_TRUE(statuses[rank].ok()) << statuses[rank];
  EXPECT_EQ(statuses[5].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(
      Has(statuses[5], "rank 5 on host node2 did not hear from rank 4 on host node2 within 2 s: "))
      << statuses[5];
  EXPECT_EQ(statuses[3].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(statuses[3],
                  "rank 3 on host node1 did not get through to rank 4 on host node2 within 2 s: "))
      << statuses[3];
}

// Rank 0 closes the ring.
TEST(RingExchangeTest, TheLastRankIsMissedByTheFirst) {
  auto world = NewInProcessWorld(3);
  const std::vector<absl::Status> statuses =
      Exchange(world, {"a", "b", ""}, milliseconds(300), {2});
  EXPECT_TRUE(Has(statuses[0],
                  "rank 0 on host a did not hear from rank 2 on an unknown host "
                  "within 0.3 s: "))
      << statuses[0];
}

TEST(RingExchangeTest, ErrorsOfTheOperationAreKept) {
  auto world = NewInProcessWorld(2);
  world[1]->Abort(absl::DataLossError("shard 5 is torn"));
  const std::vector<absl::Status> statuses = Exchange(world, {"a", "b"}, kLong, {1});
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Has(statuses[0], "rank 0 on host a did not hear from rank 1 on host b: "))
      << statuses[0];
  EXPECT_TRUE(Has(statuses[0], "shard 5 is torn")) << statuses[0];
}

// A neighbour that talks about something else is found out.
TEST(RingExchangeTest, WrongAnswersAreRefused) {
  auto world = NewInProcessWorld(2);
  std::thread other([&] {
    CpuDevice device(1);
    const std::unique_ptr<Stream> stream = device.NewStream();
    int32_t wrong = 7;
    int32_t heard = 0;
    Completion sent = world[1]->Send(Tensor(&wrong, DType::kInt32, {1}), 0, *stream);
    Completion received = world[1]->Receive(Tensor(&heard, DType::kInt32, {1}), 0, *stream);
    EXPECT_TRUE(sent.Wait().ok());
    EXPECT_TRUE(received.Wait().ok());
    EXPECT_EQ(heard, 0);
  });
  const std::vector<absl::Status> statuses = Exchange(world, {"a", "b"}, kLong, {1});
  other.join();
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Has(statuses[0], "heard the number 7 from rank 1 on host b")) << statuses[0];
}

}  // namespace
}  // namespace fathom
