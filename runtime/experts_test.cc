// Mixtures of experts under loads that nobody plans for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/elementwise.h"
#include "runtime/model/expert_names.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

Job ToyMoe(std::vector<std::string> overrides) {
  overrides.insert(overrides.begin(), {"train.sequence_length=32", "train.global_batch=4",
                                       "model.balance_coefficient=0.01", "model.routed=1"});
  const auto job = ReadJob("launch/jobs/toy_moe.txtpb", overrides);
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *job;
}

// What the model's memory for micro-batches holds before a step.
void FillArenasWithNan(StepRank& rank) {
  for (const size_t i : {0, 1}) {
    Arena& arena = rank.training.model().arena(i);
    const ArenaScope scope(arena);
    const Tensor all = arena.New(DType::kFloat32, {int64_t{4} << 20});
    Launch(rank.training.stream(),
           Fill{.value = std::numeric_limits<double>::quiet_NaN(), .y = all});
  }
}

// Every router gives all experts the same score, and expert `chosen` the largest bias.
void ChooseAlways(const ParameterTable& parameters, int64_t chosen) {
  for (const Parameter& parameter : parameters.all()) {
    float* weights = parameter.master.data<float>();
    if (parameter.spec.name.find("mlp.gate.") == std::string::npos) continue;
    std::fill_n(weights, parameter.master.elements(), 0.0f);
    if (parameter.spec.role == ParameterRole::kExpertBias) weights[chosen] = 10;
  }
}

double LargestGradient(const Parameter& parameter) {
  const float* gradient = parameter.gradient.data<float>();
  double largest = 0;
  for (int64_t i = 0; i < parameter.gradient.elements(); ++i) {
    EXPECT_TRUE(std::isfinite(gradient[i])) << parameter.spec.name;
    largest = std::max<double>(largest, std::abs(gradient[i]));
  }
  return largest;
}

// All rows to one expert: nobody waits for the ranks without rows, idle experts learn exactly
// nothing, and nothing reads memory that holds no rows.
TEST(Experts, OneExpertGetsAllRows) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"parallel.data=2", "parallel.expert=2"},
      {"parallel.data=2", "parallel.expert=2", "parallel.lanes=2"},
      {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"},
      {"parallel.data=2", "parallel.tensor=2", "parallel.expert=4"},
      {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2", "parallel.expert_tensor=true"}};
  for (const std::vector<std::string>& layout : layouts) {
    SCOPED_TRACE(layout.empty() ? "one rank" : layout.back());
    const auto body = [&](StepRank& rank) -> absl::Status {
      const ParameterTable& parameters = rank.training.parameters();
      for (const int64_t chosen : {0, 7}) {
        ChooseAlways(parameters, chosen);
        FillArenasWithNan(rank);
        FATHOM_RETURN_IF_ERROR(
            rank.training.ComputeGradients(rank.micro_batches, rank.label_weight, rank.totals, {}));
        for (const Parameter& parameter : parameters.all()) {
          const double largest = LargestGradient(parameter);
          if (!parameter.spec.of_expert) continue;
          const bool busy =
              parameter.spec.name.find(absl::StrCat(".experts.", chosen, ".")) != std::string::npos;
          if (busy) {
            EXPECT_GT(largest, 0) << parameter.spec.name;
          } else {
            EXPECT_EQ(largest, 0) << parameter.spec.name;
          }
        }
        const Parameter* bias = parameters.Find(ExpertBiasName(0));
        EXPECT_EQ(bias->gradient.data<float>()[chosen], 4 * 32);
        FATHOM_RETURN_IF_ERROR(rank.training.Update(/*learning_rate=*/1e-3, rank.totals));
        EXPECT_TRUE(std::isfinite(rank.totals.data<double>()[kLossTotal]));
      }
      return absl::OkStatus();
    };
    EXPECT_EQ(RunStepRanks(ToyMoe(layout), {}, body), absl::OkStatus());
  }
}

// Equal scores everywhere: the lowest experts, on every rank and in every run.
TEST(Experts, TiesGoToTheLowestExperts) {
  for (int run = 0; run < 5; ++run) {
    const auto body = [&](StepRank& rank) -> absl::Status {
      for (const Parameter& parameter : rank.training.parameters().all()) {
        if (parameter.spec.name.find("mlp.gate.") == std::string::npos) continue;
        Launch(rank.training.stream(), Fill{.value = 0, .y = parameter.master});
      }
      int64_t choices = 0;
      const PassHooks hooks = {.before_forward = {},
                               .after_forward =
                                   [&](int64_t, const HostBatch&, const Pass& pass) {
                                     for (const LayerExperts& layer : pass.experts) {
                                       const int32_t* experts = layer.experts.data<int32_t>();
                                       for (int64_t i = 0; i < layer.experts.elements(); ++i) {
                                         EXPECT_EQ(experts[i], i % 3);
                                         ++choices;
                                       }
                                     }
                                   },
                               .gradients_done = {}};
      FATHOM_RETURN_IF_ERROR(rank.Train(hooks));
      EXPECT_EQ(choices, 4 * 2 * 16 * 3);
      return absl::OkStatus();
    };
    EXPECT_EQ(RunStepRanks(ToyMoe({"model.routed=3", "parallel.data=2", "parallel.tensor=2",
                                   "parallel.expert=4"}),
                           {}, body),
              absl::OkStatus());
  }
}

}  // namespace
}  // namespace fathom
