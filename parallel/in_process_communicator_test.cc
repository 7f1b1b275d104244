#include "parallel/in_process_communicator.h"

#include <functional>
#include <latch>
#include <thread>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/local_communicator.h"
#include "parallel/testing/communicator_checks.h"

namespace fathom {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

void RunRanks(std::vector<std::unique_ptr<Communicator>>& world,
              const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& communicator : world) {
    threads.emplace_back([&body, &communicator] { body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

void RunRanks(int ranks, const InProcessOptions& options,
              const std::function<void(Communicator&)>& body) {
  auto world = NewInProcessWorld(ranks, options);
  RunRanks(world, body);
}

InProcessOptions Chunks(int64_t elements) {
  InProcessOptions options;
  options.chunk_elements = elements;
  return options;
}

class CommunicatorTest : public testing::TestWithParam<CommunicatorCheck> {};

TEST_P(CommunicatorTest, OneRank) {
  const auto communicator = NewLocalCommunicator();
  GetParam().run(*communicator);
}

TEST_P(CommunicatorTest, InProcessOneRank) { RunRanks(1, {}, GetParam().run); }
TEST_P(CommunicatorTest, InProcessTwoRanks) { RunRanks(2, {}, GetParam().run); }
TEST_P(CommunicatorTest, InProcessFiveRanksInChunks) { RunRanks(5, Chunks(1000), GetParam().run); }

TEST_P(CommunicatorTest, InProcessWithRandomDelays) {
  InProcessOptions options;
  options.latency = microseconds(1);
  options.random_latency = microseconds(300);
  options.bytes_per_second = 1e9;
  RunRanks(4, options, GetParam().run);
}

INSTANTIATE_TEST_SUITE_P(Checks, CommunicatorTest, testing::ValuesIn(CommunicatorChecks()),
                         [](const auto& info) { return info.param.name; });

class Rank {
 public:
  Rank() : device_(1), stream_(device_.NewStream()) {}
  Stream& stream() { return *stream_; }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
};

void RunCheck(const std::string& name, Communicator& communicator) {
  static const std::vector<CommunicatorCheck> checks = CommunicatorChecks();
  for (const CommunicatorCheck& check : checks) {
    if (check.name == name) return check.run(communicator);
  }
  FAIL() << "no check " << name;
}

TEST(InProcessTest, SixtyFourRanks) {
  RunRanks(64, {}, [](Communicator& communicator) {
    RunCheck("AllReduceSumsFloat64", communicator);
    RunCheck("SplitsIntoGroups", communicator);
    RunCheck("AllToAllUneven", communicator);
  });
}

// 256 and sixteen times 1 are 272, which bfloat16 can hold.
TEST(InProcessTest, SeventeenRanksAddUpTo272) {
  RunRanks(17, {}, [](Communicator& communicator) {
    Rank rank;
    uint16_t x = communicator.rank() == 0 ? 0x4380 : 0x3f80;  // 256 and 1
    EXPECT_TRUE(
        communicator.AllReduce(Tensor(&x, DType::kBFloat16, {1}), ReduceOp::kSum, rank.stream())
            .Wait()
            .ok());
    EXPECT_EQ(x, 0x4388);  // 272
  });
}

TEST(InProcessTest, OneChunkOrMany) {
  for (const int64_t length : {999, 1000, 1001, 2500}) {
    std::vector<std::vector<float>> results;
    for (const int64_t chunk : {int64_t{1} << 27, int64_t{1000}, int64_t{1}}) {
      std::vector<std::vector<float>> x(3, std::vector<float>(length));
      for (int r = 0; r < 3; ++r) {
        for (int64_t i = 0; i < length; ++i) x[r][i] = 1.0f / static_cast<float>(1 + r + i);
      }
      RunRanks(3, Chunks(chunk), [&](Communicator& communicator) {
        Rank rank;
        const Tensor view(x[communicator.rank()].data(), DType::kFloat32, {length});
        EXPECT_TRUE(communicator.AllReduce(view, ReduceOp::kSum, rank.stream()).Wait().ok());
      });
      EXPECT_EQ(x[0], x[1]);
      EXPECT_EQ(x[0], x[2]);
      results.push_back(x[0]);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

void ExpectStatus(const absl::Status& status, absl::StatusCode code,
                  const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos)
        << status << " does not say '" << part << "'";
  }
}

TEST(InProcessTest, DifferentOperationsAreRefused) {
  RunRanks(2, {}, [](Communicator& communicator) {
    Rank rank;
    std::vector<float> x(4);
    const Tensor view(x.data(), DType::kFloat32, {4 - communicator.rank()});
    ExpectStatus(communicator.AllReduce(view, ReduceOp::kSum, rank.stream()).Wait(),
                 absl::StatusCode::kFailedPrecondition, {"of 16 bytes", "of 12 bytes"});
    Completion transfer = communicator.rank() == 0 ? communicator.Send(view, 1, rank.stream())
                                                   : communicator.Receive(view, 0, rank.stream());
    ExpectStatus(transfer.Wait(), absl::StatusCode::kFailedPrecondition,
                 {"sends 16 bytes", "receives 12 bytes"});
  });
}

// What a rank waited for, and as whom, when the others do not come.
TEST(InProcessTest, WatchdogSaysWhatItWaitedFor) {
  InProcessOptions options;
  options.watchdog = milliseconds(20);
  auto world = NewInProcessWorld(3, options);
  std::vector<double> x(512);
  const Tensor view(x.data(), DType::kFloat64, {512});
  Rank rank;
  world[1]->set_rank_label("rank 1 (data 0, tensor 1)");
  ExpectStatus(world[1]->AllReduce(view, ReduceOp::kSum, rank.stream()).Wait(),
               absl::StatusCode::kDeadlineExceeded,
               {"rank 1 (data 0, tensor 1) waited 0.02 s", "all-reduce number 0 (4096 bytes)",
                "group world", "rank 1 of 3"});
  ExpectStatus(world[0]->Receive(view, 2, rank.stream()).Wait(),
               absl::StatusCode::kDeadlineExceeded, {"rank 0 waited", "receive", "from rank 2"});
  world[0]->Abort(absl::InternalError("end of the test"));
}

TEST(InProcessTest, AbortEndsWhatOthersWaitFor) {
  auto world = NewInProcessWorld(4);
  std::vector<std::unique_ptr<Communicator>> groups(4);
  RunRanks(world, [&](Communicator& communicator) {
    auto split = communicator.Split(communicator.rank() / 2, 0, "pair");
    ASSERT_TRUE(split.ok());
    groups[communicator.rank()] = *std::move(split);
  });
  world[2]->set_rank_label("rank 2 (data 1)");
  RunRanks(world, [&](Communicator& communicator) {
    Rank rank;
    std::vector<float> x(4);
    const Tensor view(x.data(), DType::kFloat32, {4});
    const std::vector<std::string> cause = {"rank 2 (data 1)", "no space left"};
    if (communicator.rank() == 2) {
      communicator.Abort(absl::ResourceExhaustedError("no space left"));
      communicator.Abort(absl::InternalError("a later cause"));
    } else if (communicator.rank() == 3) {
      ExpectStatus(groups[3]->AllReduce(view, ReduceOp::kSum, rank.stream()).Wait(),
                   absl::StatusCode::kAborted, cause);
    } else {
      ExpectStatus(communicator.Barrier(rank.stream()).Wait(), absl::StatusCode::kAborted, cause);
    }
    ExpectStatus(communicator.Barrier(rank.stream()).Wait(), absl::StatusCode::kAborted, cause);
    ExpectStatus(communicator.Split(0, 0, "late").status(), absl::StatusCode::kAborted, cause);
  });
}

// A transfer whose end is far away neither holds up its caller nor touches the output.
TEST(InProcessTest, DelayedOperationsDoNotBlock) {
  InProcessOptions options;
  options.latency = std::chrono::hours(1);
  auto world = NewInProcessWorld(2, options);
  std::latch checked(2);
  RunRanks(world, [&](Communicator& communicator) {
    Rank rank;
    std::vector<float> x = {1};
    const Tensor view(x.data(), DType::kFloat32, {1});
    Completion sum = communicator.AllReduce(view, ReduceOp::kSum, rank.stream());
    EXPECT_FALSE(sum.done());
    EXPECT_EQ(x[0], 1);
    checked.arrive_and_wait();
    communicator.Abort(absl::CancelledError("enough"));
    ExpectStatus(sum.Wait(), absl::StatusCode::kAborted, {"enough"});
    EXPECT_EQ(x[0], 1);
  });
}

// Transfers of one communicator wait for one another, each for latency and bytes / bandwidth.
TEST(InProcessTest, DelaysAddUp) {
  InProcessOptions options;
  options.latency = milliseconds(2);
  options.bytes_per_second = 1e6;  // 4000 bytes: 4 ms
  auto log = std::make_shared<CommunicationLog>();
  RunRanks(2, options, [&](Communicator& communicator) {
    Rank rank;
    std::vector<float> x(1000), y(1000);
    if (communicator.rank() == 0) communicator.set_log(log);
    Completion first = communicator.AllReduce(Tensor(x.data(), DType::kFloat32, {1000}),
                                              ReduceOp::kSum, rank.stream());
    Completion second = communicator.AllReduce(Tensor(y.data(), DType::kFloat32, {1000}),
                                               ReduceOp::kSum, rank.stream());
    EXPECT_TRUE(second.Wait().ok());
    EXPECT_TRUE(first.done());
  });
  const std::vector<CommunicationLog::Record> records = log->records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_GE(records[0].finished - records[0].issued, milliseconds(6));
  EXPECT_GE(records[1].finished - records[0].issued, milliseconds(12));
}

}  // namespace
}  // namespace fathom
