#include "parallel/dry_communicator.h"

#include "gtest/gtest.h"

namespace fathom {
namespace {

// Three of eight ranks' calls, on memory that does not exist, are counted and done.
TEST(DryCommunicatorTest, CountsAndTouchesNothing) {
  const std::unique_ptr<Device> device = NewDryDevice();
  const std::unique_ptr<Stream> stream = device->NewStream();
  const auto communicator = NewDryCommunicator(3, 8, "tensor");
  EXPECT_EQ(communicator->rank(), 3);
  EXPECT_EQ(communicator->size(), 8);
  auto log = std::make_shared<CommunicationLog>();
  communicator->set_log(log);
  const int64_t billions = (int64_t{1} << 31) + 8;
  const Tensor part(reinterpret_cast<void*>(int64_t{1} << 48), DType::kBFloat16, {billions});
  const Tensor whole(reinterpret_cast<void*>(int64_t{1} << 50), DType::kBFloat16, {8 * billions});
  EXPECT_TRUE(communicator->AllGather(part, whole, *stream).Wait().ok());
  EXPECT_TRUE(communicator->ReduceScatter(whole, part, ReduceOp::kSum, *stream).Wait().ok());
  EXPECT_TRUE(communicator->Send(part, 4, *stream).done());
  const auto totals = log->totals();
  EXPECT_EQ(totals.at({"tensor", "all-gather"}), (CommunicationLog::Total{1, 16 * billions}));
  EXPECT_EQ(totals.at({"tensor", "reduce-scatter"}), (CommunicationLog::Total{1, 16 * billions}));
  EXPECT_EQ(totals.at({"tensor", "send"}), (CommunicationLog::Total{1, 2 * billions}));
  log->Clear();
  EXPECT_TRUE(log->records().empty());
}

TEST(DryCommunicatorTest, StillRefusesWhatDoesNotFit) {
  const std::unique_ptr<Device> device = NewDryDevice();
  const std::unique_ptr<Stream> stream = device->NewStream();
  const auto communicator = NewDryCommunicator(0, 2, "data");
  const Tensor x(reinterpret_cast<void*>(int64_t{1} << 48), DType::kFloat32, {6});
  EXPECT_EQ(communicator->AllGather(x, x, *stream).Wait().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(communicator->Split(0, 0, "half").status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace fathom
