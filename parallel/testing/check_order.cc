#include <memory>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "parallel/testing/check_values.h"
#include "parallel/testing/communicator_checks.h"

namespace fathom {
namespace {

// Every rank sends to the next one and receives from the one before it.
void SendsAroundTheRing(Communicator& c) {
  if (c.size() == 1) return;
  Rank rank;
  const int next = (c.rank() + 1) % c.size();
  const int previous = (c.rank() + c.size() - 1) % c.size();
  for (const int64_t length : kLengths) {
    std::vector<double> sent = ValuesOf<double>(c.rank(), 0, length);
    std::vector<double> received(length, 99);
    Completion send = c.Send(View(sent), next, rank.stream());
    Completion receive = c.Receive(View(received), previous, rank.stream());
    EXPECT_TRUE(send.Wait().ok());
    EXPECT_TRUE(receive.Wait().ok());
    EXPECT_EQ(received, ValuesOf<double>(previous, 0, length));
  }
}

// Several sends in flight to the same rank arrive in the order of issue.
void SendsKeepTheirOrder(Communicator& c) {
  if (c.size() == 1) return;
  Rank rank;
  constexpr int kMessages = 20;
  std::vector<std::vector<int32_t>> values(kMessages);
  std::vector<Completion> completions;
  for (int m = 0; m < kMessages; ++m) {
    const int64_t length = 1 + m * 131 % 2000;
    values[m] = ValuesOf<int32_t>(c.rank() == 0 ? m : 1000, 0, length);
    if (c.rank() == 0) completions.push_back(c.Send(View(values[m]), 1, rank.stream()));
    if (c.rank() == 1) completions.push_back(c.Receive(View(values[m]), 0, rank.stream()));
  }
  for (Completion& completion : completions) EXPECT_TRUE(completion.Wait().ok());
  for (int m = 0; m < kMessages && c.rank() < 2; ++m) {
    EXPECT_EQ(values[m], ValuesOf<int32_t>(m, 0, values[m].size())) << "message " << m;
  }
}

// Operations of one communicator read what the ones before them wrote, without a wait between, and
// those of two communicators do not disturb each other, however slow some ranks are.
void OperationsFollowEachOther(Communicator& c) {
  Rank rank;
  auto split = c.Split(0, c.rank(), "other");
  ASSERT_TRUE(split.ok()) << split.status();
  Communicator& other = **split;
  std::mt19937 random(17 + c.rank());
  for (int round = 0; round < 20; ++round) {
    const int64_t length = 1 + round * 97 % 1500;
    std::vector<double> x = ValuesOf<double>(c.rank(), 0, length * c.size());
    std::vector<double> y = ValuesOf<double>(c.rank() + round, 0, length);
    const Tensor slice = View(x).Rows(length * c.rank(), length * (c.rank() + 1));
    for (uint32_t i = random() % 200; i > 0; --i) std::this_thread::yield();
    Completion scattered = c.ReduceScatter(View(x), slice, ReduceOp::kSum, rank.stream());
    Completion summed = other.AllReduce(View(y), ReduceOp::kSum, rank.stream());
    for (uint32_t i = random() % 200; i > 0; --i) std::this_thread::yield();
    Completion gathered = c.AllGather(slice, View(x), rank.stream());
    EXPECT_TRUE(gathered.Wait(rank.stream()).ok());
    EXPECT_TRUE(scattered.done());
    EXPECT_TRUE(summed.Wait().ok());
    EXPECT_EQ(x, SumsOf<double>(c.size(), 0, length * c.size()));
    std::vector<double> expected(length, 0);
    for (int r = 0; r < c.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) expected[i] += ValueOf<double>(r + round, i);
    }
    EXPECT_EQ(y, expected);
  }
}

// A send that stands behind a collective carries what the collective wrote.
void SendsFollowCollectives(Communicator& c) {
  if (c.size() == 1) return;
  Rank rank;
  std::vector<float> x = ValuesOf<float>(c.rank(), 0, 300);
  std::vector<float> received(300);
  const int next = (c.rank() + 1) % c.size();
  const int previous = (c.rank() + c.size() - 1) % c.size();
  Completion sum = c.AllReduce(View(x), ReduceOp::kSum, rank.stream());
  Completion send = c.Send(View(x), next, rank.stream());
  Completion receive = c.Receive(View(received), previous, rank.stream());
  EXPECT_TRUE(receive.Wait().ok());
  EXPECT_TRUE(send.Wait().ok());
  EXPECT_TRUE(sum.Wait().ok());
  EXPECT_EQ(received, SumsOf<float>(c.size(), 0, 300));
}

void SplitsIntoGroups(Communicator& c) {
  Rank rank;
  // Odd and even ranks, in descending order; the last rank joins none.
  const bool joins = c.size() == 1 || c.rank() != c.size() - 1;
  auto split = c.Split(joins ? c.rank() % 2 : -1, -c.rank(), "parity");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(*split != nullptr, joins);
  if (!joins) return;
  std::vector<int32_t> members;
  for (int r = c.size() - 1; r >= 0; --r) {
    if (r % 2 == c.rank() % 2 && (c.size() == 1 || r != c.size() - 1)) members.push_back(r);
  }
  Communicator& group = **split;
  EXPECT_EQ(group.name(), "parity");
  ASSERT_EQ(group.size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[group.rank()], c.rank());
  std::vector<int32_t> own = {c.rank()};
  std::vector<int32_t> all(group.size());
  EXPECT_TRUE(group.AllGather(View(own), View(all), rank.stream()).Wait().ok());
  EXPECT_EQ(all, members);
}

void BarrierWaitsForAll(Communicator& c) {
  Rank rank;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(c.Barrier(rank.stream()).Wait().ok());
}

void RecordsWhatIsAsked(Communicator& c) {
  Rank rank;
  auto log = std::make_shared<CommunicationLog>();
  std::vector<float> x(10);
  std::vector<float> all(10 * c.size());
  EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
  c.set_log(log);
  auto split = c.Split(0, c.rank(), "group");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_TRUE((*split)->AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
  EXPECT_TRUE(c.AllGather(View(x), View(all), rank.stream()).Wait().ok());
  EXPECT_TRUE(c.AllGather(View(x), View(all), rank.stream()).Wait().ok());
  EXPECT_TRUE(c.ReduceScatter(View(all), View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
  EXPECT_TRUE((*split)->Barrier(rank.stream()).Wait().ok());
  c.set_log(nullptr);
  EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());

  const std::vector<CommunicationLog::Record> records = log->records();
  if (c.size() == 1) {
    EXPECT_TRUE(records.empty());
    return;
  }
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(records[0].collective, Collective::kAllReduce);
  EXPECT_EQ(records[0].group, "group");
  EXPECT_EQ(records[0].bytes, 40);
  EXPECT_EQ(records[0].group_size, c.size());
  EXPECT_EQ(records[4].order, 4);
  for (const CommunicationLog::Record& record : records) {
    EXPECT_TRUE(record.done);
    EXPECT_LE(record.issued, record.finished);
  }
  const auto totals = log->totals();
  EXPECT_EQ(totals.size(), 4u);
  EXPECT_EQ(totals.at({c.name(), "all-gather"}), (CommunicationLog::Total{2, 80 * c.size()}));
  EXPECT_EQ(totals.at({c.name(), "reduce-scatter"}), (CommunicationLog::Total{1, 40 * c.size()}));
  EXPECT_EQ(totals.at({"group", "barrier"}), (CommunicationLog::Total{1, 0}));
}

void ExpectRefused(Completion completion, const std::string& part) {
  const absl::Status status = completion.Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
}

void RefusesOperandsThatDoNotFit(Communicator& c) {
  Rank rank;
  std::vector<float> x(6);
  std::vector<double> y(6);
  const Tensor matrix(x.data(), DType::kFloat32, {2, 3});
  ExpectRefused(c.AllReduce(matrix.Columns(0, 2), ReduceOp::kSum, rank.stream()), "contiguous");
  ExpectRefused(c.AllReduce(Tensor(), ReduceOp::kSum, rank.stream()), "absent");
  ExpectRefused(c.Broadcast(View(x), c.size(), rank.stream()), "is not one of 0 to");
  ExpectRefused(c.Broadcast(View(x), -1, rank.stream()), "rank -1");
  ExpectRefused(c.Send(View(x), c.rank(), rank.stream()), "must be another one");
  ExpectRefused(c.AllGather(View(x), View(x).Rows(0, 5), rank.stream()), "5 elements");
  ExpectRefused(c.AllGather(View(x), View(y), rank.stream(), {6, 0}), "float64");
  std::vector<float> wide(6 * c.size());
  ExpectRefused(c.ReduceScatter(View(wide), View(x), ReduceOp::kSum, rank.stream(), {7}), "[7]");
  std::vector<int64_t> negative(c.size(), 6);
  negative[c.rank()] = -6;
  ExpectRefused(c.AllToAll(View(wide), negative, View(wide), std::vector<int64_t>(c.size(), 6),
                           rank.stream()),
                "0 or more");
  EXPECT_TRUE(c.Barrier(rank.stream()).Wait().ok()) << "the communicator is still good";
}

void DryStreamsMoveNothing(Communicator& c) {
  const std::unique_ptr<Device> device = NewDryDevice();
  const std::unique_ptr<Stream> stream = device->NewStream();
  const Tensor nowhere(reinterpret_cast<void*>(int64_t{1} << 48), DType::kFloat32, {1000000});
  auto log = std::make_shared<CommunicationLog>();
  c.set_log(log);
  EXPECT_TRUE(c.AllReduce(nowhere, ReduceOp::kSum, *stream).Wait().ok());
  c.set_log(nullptr);
  EXPECT_EQ(log->records().size(), c.size() == 1 ? 0u : 1u);
}

}  // namespace

std::vector<CommunicatorCheck> OrderChecks() {
  return {
      {"SendsAroundTheRing", SendsAroundTheRing},
      {"SendsKeepTheirOrder", SendsKeepTheirOrder},
      {"OperationsFollowEachOther", OperationsFollowEachOther},
      {"SendsFollowCollectives", SendsFollowCollectives},
      {"SplitsIntoGroups", SplitsIntoGroups},
      {"BarrierWaitsForAll", BarrierWaitsForAll},
      {"RecordsWhatIsAsked", RecordsWhatIsAsked},
      {"RefusesOperandsThatDoNotFit", RefusesOperandsThatDoNotFit},
      {"DryStreamsMoveNothing", DryStreamsMoveNothing},
  };
}

}  // namespace fathom
