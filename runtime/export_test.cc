#include "runtime/export.h"

#include <gtest/gtest.h>

#include "core/job.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

constexpr char kDense[] = "plan { repeat: 3 dense {} }";
constexpr char kSparse[] = "plan { repeat: 3 dense {} } plan { sparse { sparsity: 4 } }";

std::string JobText(const std::string& plan) {
  return "model { d: 8 heads: 6 kv_heads: 3 head_dim: 2 ffn: 12 vocabulary: 257 theta: 1e5 " +
         plan + " } data { text: 'text' } train { steps: 1 sequence_length: 16 }";
}

class ExportTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  // A run whose only checkpoint holds one tensor.
  void WriteRun(const std::string& plan) {
    const auto job = ParseJob(JobText(plan), "job", {});
    ASSERT_TRUE(job.ok()) << job.status();
    const std::vector<NamedArray> weights = {
        {.name = "lm_head.weight", .dtype = DType::kFloat64, .shape = {2}, .data = values_}};
    ASSERT_TRUE(WriteCheckpoint(files_, Path("run"),
                                {.step = 4,
                                 .consumed_sequences = 4,
                                 .job_text = job->text,
                                 .weights = weights,
                                 .optimizer = {},
                                 .integers = {},
                                 .numbers = {}})
                    .ok());
  }

  absl::Status Export(const std::string& to, ExportFormat format) {
    return ExportWeights(files_, Path("run"), Path(to), format);
  }

  FileSystem& files_ = PosixFileSystem();
  const double values_[2] = {0.1, -2};
  std::string directory_ = NewTestDirectory();
};

TEST_F(ExportTest, WritesTheWeightsAlone) {
  WriteRun(kSparse);
  ASSERT_TRUE(files_.CreateDirectories(Path("empty")).ok());
  for (const std::string to : {"new", "empty"}) {
    const absl::Status status = Export(to, ExportFormat::kCheckpoint);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(*files_.List(Path(to)), std::vector<std::string>{kModelFile});
    double values[2] = {};
    const auto file = OpenWeights(files_, Path(to));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tensors().size(), 1);
    EXPECT_TRUE((*file)->Read("lm_head.weight", DType::kFloat64, {2}, values).ok());
    EXPECT_EQ(values[0], 0.1);
    EXPECT_EQ(values[1], -2);
  }
  EXPECT_EQ(files_.List(directory_)->size(), 3);
}

TEST_F(ExportTest, DenseModelsGetTheConfigurationOfQwen3) {
  WriteRun(kDense);
  const absl::Status status = Export("new", ExportFormat::kHuggingFace);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(*files_.List(Path("new")), (std::vector<std::string>{"config.json", kModelFile}));
  const auto config = nlohmann::json::parse(*ReadFile(files_, Path("new/config.json")));
  EXPECT_EQ(config["architectures"], nlohmann::json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(config["model_type"], "qwen3");
  EXPECT_EQ(config["hidden_size"], 8);
  EXPECT_EQ(config["intermediate_size"], 12);
  EXPECT_EQ(config["num_hidden_layers"], 3);
  EXPECT_EQ(config["num_attention_heads"], 6);
  EXPECT_EQ(config["num_key_value_heads"], 3);
  EXPECT_EQ(config["head_dim"], 2);
  EXPECT_EQ(config["vocab_size"], 257);
  EXPECT_EQ(config["max_position_embeddings"], 16);
  EXPECT_EQ(config["rope_theta"], 1e5);
  EXPECT_EQ(config["rms_norm_eps"], 1e-6);
  EXPECT_EQ(config["tie_word_embeddings"], false);
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(config["torch_dtype"], "float64");
}

TEST_F(ExportTest, SparsePlansAreRefusedForHuggingFace) {
  WriteRun(kSparse);
  const absl::Status status = Export("new", ExportFormat::kHuggingFace);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(),
            "Hugging Face has no model for the plan 3*D + S4, only for dense layers: use --format "
            "checkpoint");
  EXPECT_FALSE(files_.Exists(Path("new")));
}

TEST_F(ExportTest, NothingIsOverwritten) {
  WriteRun(kDense);
  ASSERT_TRUE(Export("new", ExportFormat::kCheckpoint).ok());
  const absl::Status again = Export("new", ExportFormat::kCheckpoint);
  EXPECT_TRUE(absl::IsAlreadyExists(again));
  EXPECT_EQ(again.message(),
            Path("new") + " exists already, and nothing is overwritten: name a new directory");
  WriteTestFile(Path("file"), "");
  EXPECT_TRUE(absl::IsAlreadyExists(Export("file", ExportFormat::kCheckpoint)));
}

TEST_F(ExportTest, AFailureLeavesNothing) {
  WriteRun(kDense);
  FailingFiles counting(-1);
  ASSERT_TRUE(ExportWeights(counting, Path("run"), Path("new"), ExportFormat::kHuggingFace).ok());
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    FailingFiles files(fail_at);
    ASSERT_TRUE(files_.RemoveAll(Path("new")).ok());
    EXPECT_FALSE(ExportWeights(files, Path("run"), Path("new"), ExportFormat::kHuggingFace).ok());
    EXPECT_FALSE(files_.Exists(Path("new"))) << fail_at;
  }
  EXPECT_TRUE(absl::IsNotFound(
      ExportWeights(files_, Path("missing"), Path("new"), ExportFormat::kCheckpoint)));
}

}  // namespace
}  // namespace fathom
