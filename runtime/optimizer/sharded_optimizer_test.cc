// The optimizer over ranks, on numbers that can be foretold.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <thread>

#include "core/cpu_device.h"
#include "core/random.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/in_process_communicator.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {
namespace {

// One rank with an optimizer over parameters that `add` puts into its table.
struct Rank {
  Rank(Communicator& world, const MeshSizes& sizes, bool zero,
       const std::function<void(ParameterTable&, int tensor_rank)>& add,
       const ExpertSizes& experts = {})
      : device(1), stream(device.NewStream()), arena(device, 1 << 20) {
    groups = *RankGroups::Create(world, sizes, experts);
    add(table, groups->tensor().rank());
    ParameterLayoutOptions layout;
    layout.data_ranks = sizes.data;
    layout.tensor_ranks = sizes.tensor;
    layout.expert_replicas = groups->expert_replicas().size();
    layout.expert_tensor_ranks = groups->expert_tensor().size();
    FATHOM_CHECK(table.Allocate(device, DType::kFloat64, true, layout).ok());
    Launch(*stream, Fill{.value = 0, .y = table.gradients()});
    Launch(*stream, Fill{.value = 0, .y = table.masters()});
    OptimizerConfig config;
    config.weight_decay = 0;
    optimizer = *Optimizer::Create(config, {.shard_state = zero}, table, *groups, device, *stream);
    totals = arena.New(DType::kFloat64, {2});
    Launch(*stream, Fill{.value = 0, .y = totals});
  }

  void Step() { FATHOM_CHECK(optimizer->Step(*stream, arena, 0.1, totals).ok()); }
  double norm() const { return optimizer->step().data<double>()[kGradientNorm]; }

  CpuDevice device;
  std::unique_ptr<Stream> stream;
  Arena arena;
  std::unique_ptr<RankGroups> groups;
  ParameterTable table;
  std::unique_ptr<Optimizer> optimizer;
  Tensor totals;
};

void RunRanks(int ranks, const std::function<void(Communicator&)>& body) {
  auto world = NewInProcessWorld(ranks);
  std::vector<std::thread> threads;
  for (auto& rank : world) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

ParameterSpec Matrix(const std::string& name, Shape shape, int dim, int ranks, int rank) {
  ParameterSpec spec{.name = name,
                     .shape = shape,
                     .role = ParameterRole::kMatrix,
                     .gradient = GradientOverRanks::kOwn};
  const int64_t size = shape[dim] / ranks;
  if (ranks > 1) spec.part = {.dim = dim, .begin = rank * size, .end = (rank + 1) * size};
  return spec;
}

// An expert's matrix, which one rank of each expert group holds.
ParameterSpec ExpertMatrix(int expert) {
  return {.name = absl::StrCat("experts.", expert),
          .shape = {2, 1},
          .role = ParameterRole::kMatrix,
          .gradient = GradientOverRanks::kOwn,
          .of_expert = true};
}

// Squared norms of 20 and 100 on two ranks.
TEST(ShardedOptimizer, NormAddsUpTheExpertsOfAllRanks) {
  for (const bool zero : {false, true}) {
    RunRanks(2, [&](Communicator& world) {
      Rank rank(world, {.data = 2}, zero,
                [&](ParameterTable& table, int) { table.Add(ExpertMatrix(world.rank())); },
                {.expert = 2});
      double* gradient = rank.table.all()[0].gradient.data<double>();
      gradient[0] = world.rank() == 0 ? 2 : 6;
      gradient[1] = world.rank() == 0 ? 4 : 8;
      rank.Step();
      EXPECT_NEAR(rank.norm(), 10.954451150103322, 1e-12);
      EXPECT_EQ(rank.optimizer->orthogonalized(), 1);
    });
  }
}

// A stage without experts knows the same norm; copies of an expert count once.
TEST(ShardedOptimizer, NormIsThatOfAllStages) {
  RunRanks(4, [&](Communicator& world) {
    Rank rank(world, {.pipeline = 2, .data = 2}, false, [&](ParameterTable& table, int) {
      if (world.rank() < 2) {
        table.Add(ExpertMatrix(0));
      } else {
        table.Add({.name = "n", .shape = {2}, .role = ParameterRole::kNorm});
      }
    });
    double* gradient = rank.table.all()[0].gradient.data<double>();
    gradient[0] = 3;
    gradient[1] = world.rank() < 2 ? 4 : 12;
    rank.Step();
    EXPECT_NEAR(rank.norm(), std::sqrt(9.0 + 16 + 9 + 144), 1e-12);
  });
}

// Counts are added up over the data ranks exactly, whatever form gradients travel in, and move the
// bias by its rate on all of them; they are no part of the norm.
TEST(ShardedOptimizer, BiasesFollowTheCountsOfAllRanks) {
  struct Case {
    double first[2], second[2];  // of the two ranks
    double moves[2];             // of the bias
  };
  const Case cases[] = {
      {{4, 0}, {0, 3}, {-1, 1}}, {{257, 0}, {0, 256}, {-1, 1}}, {{2, 1}, {1, 2}, {0, 0}}};
  for (const bool zero : {false, true}) {
    for (const Case& c : cases) {
      RunRanks(2, [&](Communicator& world) {
        Rank rank(world, {.data = 2}, zero, [](ParameterTable& table, int) {
          table.Add({.name = "bias",
                     .shape = {2},
                     .role = ParameterRole::kExpertBias,
                     .bias_rate = 1e-3});
        });
        const Parameter& bias = rank.table.all()[0];
        const double* counts = world.rank() == 0 ? c.first : c.second;
        std::copy(counts, counts + 2, bias.gradient.data<double>());
        const auto reducer =
            GradientReducer::Create({.to_owners = zero, .bfloat16 = true}, rank.table.layout(),
                                    rank.table.gradients(), *rank.groups, rank.device);
        ASSERT_TRUE(reducer.ok());
        (*reducer)->Begin();
        (*reducer)->Ready(0, *rank.stream);
        ASSERT_TRUE((*reducer)->Finish(*rank.stream).ok());
        rank.Step();
        for (int e = 0; e < 2; ++e) {
          EXPECT_EQ(bias.gradient.data<double>()[e], c.first[e] + c.second[e]);
          EXPECT_EQ(bias.master.data<double>()[e], 1e-3 * c.moves[e]);
        }
        EXPECT_EQ(rank.norm(), 0);
        EXPECT_TRUE(rank.optimizer->state().empty());
      });
    }
  }
}

TEST(ShardedOptimizer, NormCountsWhatRanksShareOnce) {
  RunRanks(2, [](Communicator& world) {
    Rank rank(world, {.tensor = 2}, false, [](ParameterTable& table, int tensor_rank) {
      table.Add(Matrix("m", {2, 1}, 0, 2, tensor_rank));
      table.Add({.name = "n", .shape = {1}, .role = ParameterRole::kNorm});
    });
    const auto& all = rank.table.all();
    all[0].gradient.data<double>()[0] = world.rank() == 0 ? 3 : 4;
    all[1].gradient.data<double>()[0] = 12;
    rank.Step();
    EXPECT_DOUBLE_EQ(rank.norm(), 13);
  });
}

// The update of an all-ones 8 x 4 gradient, by position, whole or in parts.
std::vector<double> UpdateOfOnes(int tensor_ranks, int dim) {
  std::vector<double> whole(32);
  RunRanks(tensor_ranks, [&](Communicator& world) {
    Rank rank(world, {.tensor = tensor_ranks}, false, [&](ParameterTable& table, int tensor_rank) {
      table.Add(Matrix("m", {8, 4}, dim, tensor_ranks, tensor_rank));
    });
    const Parameter& m = rank.table.all()[0];
    Launch(*rank.stream, Fill{.value = 1, .y = m.gradient});
    rank.Step();
    VisitRuns(m.spec.shape, m.spec.part, {0, m.master.elements()},
              [&](int64_t to, int64_t from, int64_t count) {
                std::copy_n(m.master.data<double>() + from, count, whole.data() + to);
              });
  });
  return whole;
}

TEST(ShardedOptimizer, MuonOfOnesIsTheSameInParts) {
  const std::vector<double> whole = UpdateOfOnes(1, 0);
  // Rank one: five iterations bring the singular value to where the polynomial leaves it.
  double s = 1;
  for (int i = 0; i < 5; ++i) s = 3.4445 * s - 4.7750 * s * s * s + 2.0315 * s * s * s * s * s;
  const double expected = -0.1 * 0.2 * std::sqrt(8.0) * s / std::sqrt(32.0);
  for (const double value : whole) EXPECT_NEAR(value, expected, 1e-6);
  for (const int dim : {0, 1}) {
    const std::vector<double> parts = UpdateOfOnes(2, dim);
    for (int i = 0; i < 32; ++i) EXPECT_NEAR(parts[i], whole[i], 1e-15) << "dim " << dim;
  }
}

TEST(ShardedOptimizer, EveryMatrixIsOrthogonalizedOnce) {
  for (const MeshSizes& sizes :
       {MeshSizes{.data = 2}, {.tensor = 2}, {.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}}) {
    for (const bool zero : {false, true}) {
      std::atomic<int64_t> orthogonalized{0};
      RunRanks(static_cast<int>(sizes.product()), [&](Communicator& world) {
        Rank rank(world, sizes, zero, [&](ParameterTable& table, int tensor_rank) {
          for (int i = 0; i < 7; ++i) {
            table.Add(Matrix(absl::StrCat("a", i), {8, 4}, 0, sizes.tensor, tensor_rank));
            table.Add(Matrix(absl::StrCat("b", i), {4, 8}, 1, sizes.tensor, tensor_rank));
          }
        });
        Launch(*rank.stream, Fill{.value = 1, .y = rank.table.gradients()});
        rank.Step();
        orthogonalized += rank.optimizer->orthogonalized();
        rank.Step();
        EXPECT_GT(rank.optimizer->orthogonalized(), 0);
      });
      EXPECT_EQ(orthogonalized, 14) << sizes.ToString() << " zero " << zero;
    }
  }
}

// In a fused product, too: each of Q, K and V is orthogonalised for itself.
TEST(ShardedOptimizer, FusedMatricesForgetTheSizesOfTheirGradients) {
  RunRanks(2, [](Communicator& world) {
    Rank rank(world, {.tensor = 2}, true, [](ParameterTable& table, int tensor_rank) {
      table.AddFused({Matrix("q", {8, 4}, 0, 2, tensor_rank),
                      Matrix("k", {8, 4}, 0, 2, tensor_rank),
                      Matrix("v", {8, 4}, 0, 2, tensor_rank)});
    });
    const auto& all = rank.table.all();
    for (int64_t i = 0; i < all[0].gradient.elements(); ++i) {
      const double value = NormalAt(1, world.rank(), i);
      all[0].gradient.data<double>()[i] = 100 * value;
      all[1].gradient.data<double>()[i] = value;
      all[2].gradient.data<double>()[i] = value;
    }
    rank.Step();
    for (int64_t i = 0; i < all[0].master.elements(); ++i) {
      EXPECT_NEAR(all[0].master.data<double>()[i], all[1].master.data<double>()[i], 1e-6);
      EXPECT_EQ(all[1].master.data<double>()[i], all[2].master.data<double>()[i]);
    }
  });
}

// 256 + 1 is 256 in bfloat16: a sum that rounded on its way would lose all the ones.
TEST(ShardedOptimizer, GradientsInBfloat16AddUpInFloat) {
  for (const bool to_owners : {false, true}) {
    RunRanks(17, [&](Communicator& world) {
      CpuDevice device(1);
      const std::unique_ptr<Stream> stream = device.NewStream();
      ParameterTable table;
      table.Add({.name = "m", .shape = {17, 4}, .role = ParameterRole::kMatrix});
      table.Add({.name = "n", .shape = {3}, .role = ParameterRole::kNorm});
      ParameterLayoutOptions layout;
      layout.data_ranks = 17;
      ASSERT_TRUE(table.Allocate(device, DType::kFloat32, true, layout).ok());
      Launch(*stream, Fill{.value = world.rank() == 0 ? 256.0 : 1.0, .y = table.gradients()});
      const std::unique_ptr<RankGroups> groups = *RankGroups::Create(world, {.data = 17});
      const auto reducer =
          GradientReducer::Create({.to_owners = to_owners, .bfloat16 = true}, table.layout(),
                                  table.gradients(), *groups, device);
      ASSERT_TRUE(reducer.ok());
      (*reducer)->Begin();
      (*reducer)->Ready(0, *stream);
      ASSERT_TRUE((*reducer)->Finish(*stream).ok());
      for (const ParameterBucket& bucket : table.layout().buckets) {
        const ElementRange owned = to_owners ? bucket.OwnedBy(world.rank()) : bucket.elements;
        for (int64_t i = owned.begin; i < owned.end; ++i) {
          EXPECT_EQ(table.gradients().data<float>()[i], 272);
        }
      }
    });
  }
}

}  // namespace
}  // namespace fathom
