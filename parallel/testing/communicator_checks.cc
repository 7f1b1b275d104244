#include "parallel/testing/communicator_checks.h"

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <thread>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/counts.h"

namespace fathom {
namespace {

// Lengths around the chunk limit of 1,000 elements that tests set, and around nothing.
constexpr int64_t kLengths[] = {0, 1, 17, 999, 1000, 1001, 2500};

template <class T>
Tensor View(std::vector<T>& values) {
  return Tensor(values.data(), DTypeOf<T>, {static_cast<int64_t>(values.size())});
}

class Rank {
 public:
  Rank() : device_(1), stream_(device_.NewStream()) {}
  Stream& stream() { return *stream_; }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
};

// A value that depends on rank and place, whose sums are exact in every dtype and order.
template <class T>
T ValueOf(int rank, int64_t i) {
  return static_cast<T>((i * 7 + rank * 3) % 23 - 11);
}

template <class T>
std::vector<T> ValuesOf(int rank, int64_t begin, int64_t count) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = ValueOf<T>(rank, begin + i);
  return values;
}

template <class T>
std::vector<T> SumsOf(int ranks, int64_t begin, int64_t count) {
  std::vector<T> sums(count, 0);
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < count; ++i) sums[i] += ValueOf<T>(r, begin + i);
  }
  return sums;
}

// Different for each rank, with zeros among them.
std::vector<int64_t> UnevenCounts(int ranks, int64_t scale) {
  std::vector<int64_t> counts(ranks);
  for (int r = 0; r < ranks; ++r) counts[r] = r % 3 == 1 ? 0 : scale + r;
  return counts;
}

int64_t Sum(const std::vector<int64_t>& counts) { return Offsets(counts).back(); }

template <class T>
void AllReduceSums(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> x = ValuesOf<T>(c.rank(), 0, length);
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, SumsOf<T>(c.size(), 0, length)) << length << " elements";
  }
}

template <class T>
void AllReduceMaximum(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> x = ValuesOf<T>(c.rank(), 0, length);
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kMax, rank.stream()).Wait().ok());
    std::vector<T> expected = ValuesOf<T>(0, 0, length);
    for (int r = 1; r < c.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) {
        expected[i] = std::max(expected[i], ValueOf<T>(r, i));
      }
    }
    EXPECT_EQ(x, expected) << length << " elements";
  }
}

void MaximumKeepsNaN(Communicator& c) {
  Rank rank;
  for (int where = 0; where < c.size(); ++where) {
    std::vector<float> x = {c.rank() == where ? std::numeric_limits<float>::quiet_NaN() : 5.0f};
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kMax, rank.stream()).Wait().ok());
    EXPECT_TRUE(std::isnan(x[0])) << "NaN on rank " << where;
  }
}

uint16_t ToBFloat16(float value) {  // exact values only
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

Tensor BFloat16View(std::vector<uint16_t>& values) {
  return Tensor(values.data(), DType::kBFloat16, {static_cast<int64_t>(values.size())});
}

// 256 on rank 0 and 1 on the others: in bfloat16 256 + 1 is 256, so only a wider sum counts them.
void BFloat16SumsInFloat32(Communicator& c) {
  Rank rank;
  // Rounded once, to the nearest even of 8 significant bits.
  const float sum = 256.0f + static_cast<float>(c.size() - 1);
  const float unit = sum < 512 ? 2.0f : 4.0f;
  const float expected = std::nearbyint(sum / unit) * unit;
  for (const int64_t length : {int64_t{1}, int64_t{1001}, int64_t{40000}}) {
    std::vector<uint16_t> x(length, ToBFloat16(c.rank() == 0 ? 256.0f : 1.0f));
    EXPECT_TRUE(c.AllReduce(BFloat16View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, std::vector<uint16_t>(length, ToBFloat16(expected)));

    std::vector<uint16_t> input(length * c.size(), ToBFloat16(c.rank() == 0 ? 256.0f : 1.0f));
    std::vector<uint16_t> output(length);
    EXPECT_TRUE(
        c.ReduceScatter(BFloat16View(input), BFloat16View(output), ReduceOp::kSum, rank.stream())
            .Wait()
            .ok());
    EXPECT_EQ(output, std::vector<uint16_t>(length, ToBFloat16(expected)));
  }
}

// Sums that do round are those of a plain loop in rank order, to the bit, on every rank.
template <class T>
void SumsAreTakenInRankOrder(Communicator& c) {
  Rank rank;
  for (const int64_t length : {int64_t{3}, int64_t{1001}, int64_t{70001}}) {
    std::vector<std::vector<T>> all(c.size(), std::vector<T>(length));
    for (int r = 0; r < c.size(); ++r) {
      std::mt19937_64 random(1000 + r);
      std::normal_distribution<T> normal(0, 1);
      for (T& value : all[r]) value = normal(random);
    }
    std::vector<T> expected = all[0];
    for (int r = 1; r < c.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) expected[i] += all[r][i];
    }
    std::vector<T> x = all[c.rank()];
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, expected) << length << " elements";
  }
}

template <class T>
void ReduceScatterEven(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> input = ValuesOf<T>(c.rank(), 0, length * c.size());
    std::vector<T> output(length);
    EXPECT_TRUE(
        c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(output, SumsOf<T>(c.size(), length * c.rank(), length));
    EXPECT_EQ(input, ValuesOf<T>(c.rank(), 0, length * c.size())) << "the input has changed";
  }
}

void ReduceScatterUneven(Communicator& c) {
  Rank rank;
  for (const int64_t scale : kLengths) {
    const std::vector<int64_t> counts = UnevenCounts(c.size(), scale);
    const int64_t own = counts[c.rank()];
    const int64_t offset = Offsets(counts)[c.rank()];
    std::vector<double> input = ValuesOf<double>(c.rank(), 0, Sum(counts));
    std::vector<double> output(own);
    EXPECT_TRUE(c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream(), counts)
                    .Wait()
                    .ok());
    EXPECT_EQ(output, SumsOf<double>(c.size(), offset, own));

    // Onto its own slice of the input.
    const Tensor slice = View(input).Rows(offset, offset + own);
    EXPECT_TRUE(
        c.ReduceScatter(View(input), slice, ReduceOp::kSum, rank.stream(), counts).Wait().ok());
    std::vector<double> expected = ValuesOf<double>(c.rank(), 0, Sum(counts));
    const std::vector<double> sums = SumsOf<double>(c.size(), offset, own);
    std::copy(sums.begin(), sums.end(), expected.begin() + offset);
    EXPECT_EQ(input, expected);
  }
}

void ReduceToEachRank(Communicator& c) {
  Rank rank;
  for (int root = 0; root < c.size(); ++root) {
    std::vector<int64_t> counts(c.size(), 0);
    counts[root] = 2500;
    std::vector<float> input = ValuesOf<float>(c.rank(), 0, 2500);
    std::vector<float> output(counts[c.rank()]);
    EXPECT_TRUE(c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream(), counts)
                    .Wait()
                    .ok());
    if (c.rank() == root) {
      EXPECT_EQ(output, SumsOf<float>(c.size(), 0, 2500));
    }
  }
}

template <class T>
void AllGatherEven(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> input = ValuesOf<T>(c.rank(), 0, length);
    std::vector<T> output(length * c.size());
    EXPECT_TRUE(c.AllGather(View(input), View(output), rank.stream()).Wait().ok());
    std::vector<T> expected;
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<T> part = ValuesOf<T>(r, 0, length);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(output, expected);
  }
}

void AllGatherUneven(Communicator& c) {
  Rank rank;
  for (const int64_t scale : kLengths) {
    const std::vector<int64_t> counts = UnevenCounts(c.size(), scale);
    const int64_t offset = Offsets(counts)[c.rank()];
    std::vector<int32_t> expected;
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<int32_t> part = ValuesOf<int32_t>(r, 0, counts[r]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    std::vector<int32_t> input = ValuesOf<int32_t>(c.rank(), 0, counts[c.rank()]);
    std::vector<int32_t> output(Sum(counts), 99);
    EXPECT_TRUE(c.AllGather(View(input), View(output), rank.stream(), counts).Wait().ok());
    EXPECT_EQ(output, expected);

    // From its own slice of the output.
    std::vector<int32_t> in_place(Sum(counts), 99);
    std::copy(input.begin(), input.end(), in_place.begin() + offset);
    const Tensor slice = View(in_place).Rows(offset, offset + counts[c.rank()]);
    EXPECT_TRUE(c.AllGather(slice, View(in_place), rank.stream(), counts).Wait().ok());
    EXPECT_EQ(in_place, expected);
  }
}

void AllToAllUneven(Communicator& c) {
  Rank rank;
  const auto count = [](int from, int to, int64_t scale) {
    return (from + 2 * to) % 4 == 1 ? 0 : scale + from * 5 + to;
  };
  for (const int64_t scale : kLengths) {
    std::vector<int64_t> send_counts, receive_counts;
    std::vector<float> input, expected;
    for (int peer = 0; peer < c.size(); ++peer) {
      send_counts.push_back(count(c.rank(), peer, scale));
      receive_counts.push_back(count(peer, c.rank(), scale));
      const std::vector<float> sent =
          ValuesOf<float>(c.rank() * c.size() + peer, 0, send_counts.back());
      input.insert(input.end(), sent.begin(), sent.end());
      const std::vector<float> received =
          ValuesOf<float>(peer * c.size() + c.rank(), 0, receive_counts.back());
      expected.insert(expected.end(), received.begin(), received.end());
    }
    std::vector<float> output(expected.size(), 99);
    EXPECT_TRUE(c.AllToAll(View(input), send_counts, View(output), receive_counts, rank.stream())
                    .Wait()
                    .ok());
    EXPECT_EQ(output, expected);
  }
}

void BroadcastFromEachRank(Communicator& c) {
  Rank rank;
  for (int root = 0; root < c.size(); ++root) {
    for (const int64_t length : {int64_t{0}, int64_t{1}, int64_t{2500}, int64_t{40003}}) {
      std::vector<int64_t> x = ValuesOf<int64_t>(c.rank(), 0, length);
      EXPECT_TRUE(c.Broadcast(View(x), root, rank.stream()).Wait().ok());
      EXPECT_EQ(x, ValuesOf<int64_t>(root, 0, length));
    }
  }
}

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

const std::vector<CommunicatorCheck>& CommunicatorChecks() {
  static const auto* checks = new std::vector<CommunicatorCheck>{
      {"AllReduceSumsFloat32", AllReduceSums<float>},
      {"AllReduceSumsFloat64", AllReduceSums<double>},
      {"AllReduceSumsInt32", AllReduceSums<int32_t>},
      {"AllReduceSumsInt64", AllReduceSums<int64_t>},
      {"AllReduceMaximumFloat32", AllReduceMaximum<float>},
      {"AllReduceMaximumInt64", AllReduceMaximum<int64_t>},
      {"MaximumKeepsNaN", MaximumKeepsNaN},
      {"BFloat16SumsInFloat32", BFloat16SumsInFloat32},
      {"SumsAreTakenInRankOrderFloat32", SumsAreTakenInRankOrder<float>},
      {"SumsAreTakenInRankOrderFloat64", SumsAreTakenInRankOrder<double>},
      {"ReduceScatterEvenFloat32", ReduceScatterEven<float>},
      {"ReduceScatterEvenInt64", ReduceScatterEven<int64_t>},
      {"ReduceScatterUneven", ReduceScatterUneven},
      {"ReduceToEachRank", ReduceToEachRank},
      {"AllGatherEvenFloat32", AllGatherEven<float>},
      {"AllGatherEvenFloat64", AllGatherEven<double>},
      {"AllGatherUneven", AllGatherUneven},
      {"AllToAllUneven", AllToAllUneven},
      {"BroadcastFromEachRank", BroadcastFromEachRank},
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
  return *checks;
}

}  // namespace fathom
