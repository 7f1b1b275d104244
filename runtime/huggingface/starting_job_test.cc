#include "runtime/huggingface/starting_job.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/accounting.h"

namespace fathom {
namespace {

ModelConfig Model(std::vector<PlanSegment> segments) {
  ModelConfig model;
  model.d = 32;
  model.heads = 6;
  model.kv_heads = 3;
  model.head_dim = 10;
  model.ffn = 48;
  model.vocabulary = 300;
  model.theta = 1234567.25;
  model.eps = 3.0000000000000004e-6;
  model.experts = 5;
  model.routed = 3;
  model.shared = 0;
  model.expert_ffn = 12;
  model.plan = MakeLayerPlan(std::move(segments), 0);
  return model;
}

std::string Describe(const ModelConfig& model) {
  std::string text = ShortForm(model.plan.segments);
  for (const CountedParameter& parameter : EnumerateParameters(model)) {
    absl::StrAppend(&text, " ", parameter.name);
    for (const int64_t dim : parameter.dims) absl::StrAppend(&text, " ", dim);
  }
  return text;
}

TEST(StartingJobTest, HasTheModelToTheLastDigit) {
  const LayerSpec experts = {.experts = true};
  for (const std::vector<PlanSegment>& plan : {std::vector<PlanSegment>{{.repeat = 3}},
                                               {{.repeat = 2, .layer = experts}},
                                               {{.repeat = 1}, {.repeat = 4, .layer = experts}}}) {
    const ModelConfig model = Model(plan);
    const std::string text = MakeStartingJob({.model = model,
                                              .name = "a \"b\"",
                                              .weights = "dir/x\ny",
                                              .tokenizer = "dir/\"t\"",
                                              .about_tokenizer = "two\nlines",
                                              .sequence_length = 64});
    const auto job = ParseJob(text, "other", {});
    ASSERT_TRUE(job.ok()) << job.status() << "\n" << text;
    EXPECT_EQ(job->name, "a \"b\"");
    EXPECT_EQ(job->data.tokenizer, "dir/\"t\"");
    EXPECT_EQ(job->train.sequence_length, 64);
    EXPECT_EQ(job->model.theta, model.theta);
    EXPECT_EQ(job->model.eps, model.eps);
    EXPECT_EQ(job->model.routed, model.plan.has_experts() ? 3 : 0);
    EXPECT_EQ(Describe(job->model), Describe(model));
  }
}

TEST(StartingJobTest, LeavesTheTokenizerToItsDefault) {
  const auto job = ParseJob(MakeStartingJob({.model = Model({{.repeat = 3}}),
                                             .name = "a",
                                             .weights = "w",
                                             .tokenizer = "",
                                             .about_tokenizer = "",
                                             .sequence_length = 64}),
                            "other", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(job->data.tokenizer_is_set);
}

}  // namespace
}  // namespace fathom
