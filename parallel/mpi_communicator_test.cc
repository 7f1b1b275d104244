// One rank of the tests of the MPI communicator; mpi_communicator_test.sh starts several.
//
//   mpi_communicator_test                  the common checks, in the world and in two halves of it
//   mpi_communicator_test --abort RANK     this rank aborts, the others wait for it
//   mpi_communicator_test --exit RANK      this rank ends without a word, the others wait for it
//   mpi_communicator_test --stop RANK      this rank is stopped; the watchdog ends the job
#include "parallel/mpi_communicator.h"

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>

#include "core/cpu_device.h"
#include "gtest/gtest.h"
#include "parallel/testing/communicator_checks.h"

namespace fathom {
namespace {

Communicator* world = nullptr;
Communicator* half = nullptr;  // ranks 0 to n / 2 - 1, or the rest

class MpiCommunicatorTest : public testing::TestWithParam<CommunicatorCheck> {};

TEST_P(MpiCommunicatorTest, World) { GetParam().run(*world); }
TEST_P(MpiCommunicatorTest, Half) { GetParam().run(*half); }

INSTANTIATE_TEST_SUITE_P(Checks, MpiCommunicatorTest, testing::ValuesIn(CommunicatorChecks()),
                         [](const auto& info) { return info.param.name; });

// The same bits in every run, and every rank has the bits of rank 0.
TEST(MpiCommunicatorTest, RepeatsToTheBit) {
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 3; ++run) {
    std::vector<float> x(30011);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(3 + i + world->rank());
    const Tensor view(x.data(), DType::kFloat32, {static_cast<int64_t>(x.size())});
    EXPECT_TRUE(world->AllReduce(view, ReduceOp::kSum, *stream).Wait().ok());
    results.push_back(x);
    EXPECT_TRUE(world->Broadcast(view, 0, *stream).Wait().ok());
    EXPECT_EQ(x, results.back());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

// Rank `who` fails in the way `how`, while the others wait for it.
int Fail(const std::string& how, int who) {
  if (world->rank() == who && how == "--exit") std::_Exit(3);
  if (world->rank() == who && how == "--abort") {
    world->set_rank_label("rank " + std::to_string(who) + " (tensor 1)");
    world->Abort(absl::DataLossError("shard 5 is torn"));
  }
  if (world->rank() == who && how == "--stop") raise(SIGSTOP);
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  const absl::Status status = world->Barrier(*stream).Wait();
  if (status.ok()) {
    std::cerr << "the barrier ended without rank " << who << std::endl;
    return 0;
  }
  world->Abort(status);
  return 0;
}

int RunChecks() {
  auto split = world->Split(world->rank() < world->size() / 2 ? 0 : 1, 0, "half");
  if (!split.ok()) world->Abort(split.status());
  half = split->get();
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool fails = argc == 3;
  if (!fathom::StartedByMpiLauncher()) {
    std::cerr << "run this through mpi_communicator_test.sh\n";
    return 2;
  }
  fathom::CommunicatorOptions options;
  options.chunk_elements = 1000;
  options.watchdog = std::chrono::milliseconds(fails ? 2000 : 60000);
  auto mpi = fathom::MpiWorld::Start(options);
  if (!mpi.ok()) {
    std::cerr << mpi.status() << std::endl;
    return 1;
  }
  fathom::world = &(*mpi)->communicator();
  const int result = fails ? fathom::Fail(argv[1], std::stoi(argv[2])) : fathom::RunChecks();
  if (result != 0) fathom::world->Abort(absl::InternalError("a check has failed"));
  const absl::Status finished = (*mpi)->Finish();
  if (!finished.ok()) fathom::world->Abort(finished);
  return 0;
}
