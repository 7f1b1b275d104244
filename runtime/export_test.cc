#include "runtime/export.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/accounting.h"
#include "core/job.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

using Names = std::vector<std::string>;

constexpr char kDense[] = "plan { repeat: 3 dense {} }";
constexpr char kMixture[] = "shared: 2 plan { repeat: 2 moe {} }";
constexpr char kBoth[] = "shared: 1 plan { dense {} } plan { repeat: 2 moe {} }";
constexpr char kNoShared[] = "plan { dense {} } plan { moe {} }";
constexpr char kSparse[] = "plan { repeat: 3 dense {} } plan { sparse { sparsity: 4 } }";
constexpr char kTokenizerJson[] = R"({"model": {"type": "WordLevel"}})";

std::string JobText(const std::string& plan, const std::string& tokenizer = "bytes") {
  return "name: 'run' model { d: 8 heads: 6 kv_heads: 3 head_dim: 2 ffn: 12 vocabulary: 260 "
         "theta: 1e5 experts: 4 routed: 2 expert_ffn: 5 " +
         plan + " } data { text: 'text' tokenizer: '" + tokenizer +
         "' } train { steps: 1 sequence_length: 16 }";
}

// The weights of a job's model.
struct Weights {
  std::vector<std::vector<float>> data;
  std::vector<NamedArray> arrays;
};

class ExportTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  Weights Draw(const ModelConfig& model) {
    Weights weights;
    for (const CountedParameter& parameter : EnumerateParameters(model)) {
      Shape shape;
      for (const int64_t dim : parameter.dims) shape.Append(dim);
      std::vector<float>& values = weights.data.emplace_back(shape.elements());
      for (float& value : values) value = std::sin(++drawn_);
      weights.arrays.push_back({parameter.name, DType::kFloat32, shape, values.data()});
    }
    return weights;
  }

  // A run "run" with one checkpoint, and what is in it.
  Weights WriteRun(const std::string& plan, const std::string& tokenizer = "bytes") {
    const auto job = ParseJob(JobText(plan, tokenizer), "job", {});
    EXPECT_TRUE(job.ok()) << job.status();
    Weights weights = Draw(job->model);
    EXPECT_TRUE(WriteCheckpoint(files_, Path("run"),
                                {.step = 4,
                                 .consumed_sequences = 4,
                                 .job_text = job->text,
                                 .weights = weights.arrays,
                                 .optimizer = {},
                                 .integers = {},
                                 .numbers = {}})
                    .ok());
    return weights;
  }

  // The notes.
  Names Convert(const std::string& from, const std::string& to, const ExportOptions& options = {}) {
    const auto notes = Export(files_, Path(from), Path(to), options);
    EXPECT_TRUE(notes.ok()) << notes.status();
    return notes.value_or(Names());
  }
  absl::Status Refusal(const std::string& from, const ExportOptions& options = {}) {
    const absl::Status status = Export(files_, Path(from), Path("refused"), options).status();
    EXPECT_FALSE(files_.Exists(Path("refused")));
    return status;
  }
  Names List(const std::string& directory) { return *files_.List(Path(directory)); }
  nlohmann::json Config(const std::string& directory) {
    return nlohmann::json::parse(*ReadFile(files_, Path(directory + "/config.json")));
  }

  void ExpectSame(const std::string& path, const Weights& weights) {
    const auto file = OpenWeights(files_, Path(path));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tensors().size(), weights.arrays.size());
    for (const NamedArray& array : weights.arrays) {
      const NamedArray* found = (*file)->Find(array.name);
      ASSERT_NE(found, nullptr) << array.name;
      ASSERT_EQ(found->dtype, array.dtype);
      ASSERT_TRUE(found->shape == array.shape);
      EXPECT_EQ(std::memcmp(found->data, array.data, array.bytes()), 0) << array.name;
    }
  }

  FileSystem& files_ = PosixFileSystem();
  std::string directory_ = NewTestDirectory();
  int drawn_ = 0;
};

const ExportOptions kToHuggingFace = {.format = ExportFormat::kHuggingFace};

TEST_F(ExportTest, WritesTheWeightsAlone) {
  const Weights weights = WriteRun(kSparse);
  ASSERT_TRUE(files_.CreateDirectories(Path("empty")).ok());
  for (const std::string to : {"new", "empty", "slash//"}) {
    EXPECT_EQ(Convert("run", to), Names());
    EXPECT_EQ(List(to), Names{kModelFile});
    ExpectSame(to, weights);
  }
  EXPECT_EQ(files_.List(directory_)->size(), 4);
}

TEST_F(ExportTest, ThereAndBackEveryBitIsTheSame) {
  const std::pair<const char*, const char*> cases[] = {
      {kDense, "3*D"}, {kMixture, "2*E"}, {kBoth, "D + 2*E"}, {kNoShared, "D + E"}};
  for (const auto& [plan, read] : cases) {
    ASSERT_TRUE(files_.RemoveAll(directory_).ok());
    const Weights weights = WriteRun(plan);
    Convert("run", "one", kToHuggingFace);
    EXPECT_EQ(List("one"), (Names{"config.json", kModelFile}));
    const Names notes =
        Convert("run", "shards", {.format = ExportFormat::kHuggingFace, .shard_bytes = 2000});
    EXPECT_EQ(notes.size(), 1);
    EXPECT_GT(List("shards").size(), 4);
    for (const std::string from : {"one", "shards"}) {
      EXPECT_EQ(Convert(from, from + "_back"), Names());
      EXPECT_EQ(List(from + "_back"), (Names{"job.txtpb", kModelFile}));
      ExpectSame(from + "_back", weights);
      const auto job = ReadJob(Path(from + "_back/job.txtpb"), {});
      ASSERT_TRUE(job.ok()) << job.status();
      EXPECT_EQ(job->name, from + "_back");
      EXPECT_EQ(ShortForm(job->model.plan.segments), read);
      EXPECT_EQ(job->model.theta, 1e5);
      EXPECT_EQ(job->train.sequence_length, 16);
      // And once more from there, by the job beside the weights.
      Convert(from + "_back", from + "_again", kToHuggingFace);
      EXPECT_EQ(Config(from + "_again"), Config("one"));
      EXPECT_EQ(*ReadFile(files_, Path(from + "_again/model.safetensors")),
                *ReadFile(files_, Path("one/model.safetensors")));
    }
  }
}

TEST_F(ExportTest, ConfigurationsAreThoseOfTheModels) {
  WriteRun(kDense);
  Convert("run", "qwen3", kToHuggingFace);
  nlohmann::json config = Config("qwen3");
  EXPECT_EQ(config["architectures"], nlohmann::json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(config["num_hidden_layers"], 3);
  EXPECT_EQ(config["max_position_embeddings"], 16);
  EXPECT_EQ(config["dtype"], "float32");
  WriteRun(kBoth);
  Convert("run", "glm4_moe", {.format = ExportFormat::kHuggingFace, .dtype = DType::kBFloat16});
  config = Config("glm4_moe");
  EXPECT_EQ(config["architectures"], nlohmann::json::array({"Glm4MoeForCausalLM"}));
  EXPECT_EQ(config["first_k_dense_replace"], 1);
  EXPECT_EQ(config["intermediate_size"], 12);
  EXPECT_EQ(config["moe_intermediate_size"], 5);
  EXPECT_EQ(config["dtype"], "bfloat16");
}

TEST_F(ExportTest, NoSharedExpertsAreSharedExpertsOfWidthZero) {
  WriteRun(kNoShared);
  Convert("run", "new", kToHuggingFace);
  const auto file = OpenWeights(files_, Path("new"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto shape = [&](const std::string& name) {
    const NamedArray* array = (*file)->Find("model.layers.1.mlp.shared_experts." + name);
    return array == nullptr ? "missing" : array->shape.ToString();
  };
  EXPECT_EQ(shape("gate_proj.weight"), "[0, 8]");
  EXPECT_EQ(shape("up_proj.weight"), "[0, 8]");
  EXPECT_EQ(shape("down_proj.weight"), "[8, 0]");
  EXPECT_EQ((*file)->Find("model.layers.0.mlp.shared_experts.up_proj.weight"), nullptr);
}

TEST_F(ExportTest, WeightsAreConverted) {
  const Weights weights = WriteRun(kBoth);
  Convert("run", "bf16", {.dtype = DType::kBFloat16});
  Convert("bf16", "fp32", {.dtype = DType::kFloat32});
  const auto file = OpenWeights(files_, Path("fp32"));
  ASSERT_TRUE(file.ok()) << file.status();
  int64_t changed = 0;
  for (const NamedArray& array : weights.arrays) {
    const auto* values = static_cast<const float*>(array.data);
    const int64_t elements = array.shape.elements();
    const bool chooses = array.name.find("mlp.gate.") != std::string::npos;
    std::vector<float> read(elements);
    ASSERT_TRUE((*file)->Read(array.name, DType::kFloat32, array.shape, read.data()).ok());
    for (int64_t i = 0; i < elements; ++i) {
      EXPECT_EQ(read[i], chooses ? values[i] : static_cast<float>(BFloat16(values[i])));
      changed += read[i] != values[i];
    }
  }
  EXPECT_GT(changed, 100);
}

TEST_F(ExportTest, FilesOfTheTokenizerComeAlong) {
  ASSERT_TRUE(files_.CreateDirectories(Path("tokenizer")).ok());
  WriteTestFile(Path("tokenizer/tokenizer.json"), kTokenizerJson);
  WriteTestFile(Path("tokenizer/generation_config.json"), "{}");
  WriteTestFile(Path("tokenizer/else.txt"), "");
  WriteRun(kDense, Path("tokenizer"));
  Convert("run", "hf", kToHuggingFace);
  EXPECT_EQ(List("hf"),
            (Names{"config.json", "generation_config.json", kModelFile, "tokenizer.json"}));
  EXPECT_EQ(*ReadFile(files_, Path("hf/tokenizer.json")), kTokenizerJson);

  // Fathom cannot use this one, and says so.
  const Names notes = Convert("hf", "back");
  ASSERT_EQ(notes.size(), 1);
  EXPECT_EQ(notes[0].rfind("Fathom cannot use the tokenizer: ", 0), 0) << notes[0];
  EXPECT_EQ(List("back"),
            (Names{"generation_config.json", "job.txtpb", kModelFile, "tokenizer.json"}));
  EXPECT_FALSE(ReadJob(Path("back/job.txtpb"), {})->data.tokenizer_is_set);
}

// A byte-level tokenizer of `tokens` tokens without merges.
std::string ByteTokenizer(int tokens) {
  nlohmann::json vocabulary;
  // The printable characters that stand for bytes: those that are, and from 256 on those that not.
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    const int code = printable ? byte : 256 + others++;
    const std::string text = code < 128 ? std::string(1, static_cast<char>(code))
                                        : std::string{static_cast<char>(0xc0 | code >> 6),
                                                      static_cast<char>(0x80 | (code & 0x3f))};
    vocabulary[text] = byte;
  }
  nlohmann::json added;
  for (int id = 256; id < tokens; ++id) {
    const std::string text = id == 256 ? "<|endoftext|>" : absl::StrCat("<", id, ">");
    added.push_back({{"id", id}, {"content", text}, {"special", true}});
  }
  return nlohmann::json(
             {{"added_tokens", added},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"model",
               {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}})
      .dump();
}

TEST_F(ExportTest, TheJobHasTheTokenizerThatFits) {
  WriteRun(kDense);
  Convert("run", "hf", kToHuggingFace);
  WriteTestFile(Path("hf/generation_config.json"), "{}");
  EXPECT_EQ(Convert("hf", "none"), Names());
  EXPECT_FALSE(ReadJob(Path("none/job.txtpb"), {})->data.tokenizer_is_set);
  WriteTestFile(Path("hf/tokenizer.json"), ByteTokenizer(260));
  EXPECT_EQ(Convert("hf", "fits"), Names());
  EXPECT_EQ(ReadJob(Path("fits/job.txtpb"), {})->data.tokenizer, Path("fits"));
  WriteTestFile(Path("hf/tokenizer.json"), ByteTokenizer(261));
  EXPECT_EQ(Convert("hf", "large"),
            Names{"Fathom cannot use the tokenizer: it has 261 tokens, more than the model"});
  EXPECT_FALSE(ReadJob(Path("large/job.txtpb"), {})->data.tokenizer_is_set);
}

TEST_F(ExportTest, ATiedHeadIsCopied) {
  Weights weights = WriteRun(kDense);
  Convert("run", "hf", kToHuggingFace);
  nlohmann::json config = Config("hf");
  config["tie_word_embeddings"] = true;
  WriteTestFile(Path("hf/config.json"), config.dump());
  EXPECT_TRUE(absl::IsInvalidArgument(Refusal("hf")));
  weights.arrays.pop_back();
  ASSERT_TRUE(WriteSafetensorsFile(files_, Path("hf/model.safetensors"), weights.arrays, {}).ok());
  EXPECT_EQ(Convert("hf", "back"),
            Names{Path("hf") + " has one matrix for embedding and head: each got a copy of it"});
  weights.arrays.push_back(weights.arrays[0]);
  weights.arrays.back().name = "lm_head.weight";
  ExpectSame("back", weights);
  Convert("hf", "untied", kToHuggingFace);
  EXPECT_EQ(Config("untied")["tie_word_embeddings"], false);
}

TEST_F(ExportTest, SmallVocabulariesAreConvertedToo) {
  WriteRun(kDense);
  Convert("run", "hf", kToHuggingFace);
  nlohmann::json config = Config("hf");
  config["vocab_size"] = 100;
  config["max_position_embeddings"] = 40960;
  WriteTestFile(Path("hf/config.json"), config.dump());
  ModelConfig model = ParseJob(JobText(kDense), "job", {})->model;
  model.vocabulary = 100;
  const Weights weights = Draw(model);
  ASSERT_TRUE(WriteSafetensorsFile(files_, Path("hf/model.safetensors"), weights.arrays, {}).ok());
  EXPECT_EQ(Convert("hf", "back"), Names());
  const auto job = ReadJob(Path("back/job.txtpb"), {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.vocabulary, 100);
  EXPECT_EQ(job->train.sequence_length, 2048);
}

TEST_F(ExportTest, AJobSaysWhichModelWeightsAreOf) {
  const Weights weights = WriteRun(kMixture);
  Convert("run", "weights");
  EXPECT_EQ(Refusal("weights", kToHuggingFace).message(),
            Path("weights") +
                " holds weights without a job that says which model they are of: name one with "
                "--job");
  WriteTestFile(Path("job.txtpb"), JobText(kMixture));
  ExportOptions options = kToHuggingFace;
  options.job = Path("job.txtpb");
  Convert("weights", "of_directory", options);
  ExpectSame("of_directory", weights);
  Convert("weights/model.safetensors", "of_file", options);
  ExpectSame("of_file", weights);
  EXPECT_EQ(Refusal("run", options).message(),
            "the job " + options.job + " is given, but " + Path("run") +
                " is not weights alone: it says itself which model it has");
  options.job = Path("missing");
  EXPECT_TRUE(absl::IsNotFound(Refusal("weights", options)));
  WriteTestFile(Path("other.txtpb"), JobText(kDense));
  options.job = Path("other.txtpb");
  EXPECT_EQ(Refusal("weights", options).message(),
            Path("weights") +
                " has no tensor model.layers.0.mlp.gate_proj.weight, which the model needs");
}

TEST_F(ExportTest, WhatCannotBeConvertedIsRefused) {
  WriteRun(kSparse);
  const absl::Status sparse = Refusal("run", kToHuggingFace);
  EXPECT_TRUE(absl::IsInvalidArgument(sparse));
  EXPECT_EQ(sparse.message(),
            "Hugging Face has no model for the plan 3*D + S4, only for dense layers, mixtures of "
            "experts, and the first followed by the second: use --format checkpoint");
  EXPECT_TRUE(absl::IsNotFound(Refusal("missing")));
  WriteRun(kDense);
  Convert("run", "hf", kToHuggingFace);
  nlohmann::json config = Config("hf");
  config["num_attention_heads"] = 5;
  WriteTestFile(Path("hf/config.json"), config.dump());
  EXPECT_EQ(Refusal("hf").message(),
            Path("hf/config.json") +
                ": model.heads is 5, but it must be a multiple of model.kv_heads, which is 3");
  config.erase("head_dim");
  WriteTestFile(Path("hf/config.json"), config.dump());
  EXPECT_EQ(Refusal("hf").message(), Path("hf/config.json") + " lacks head_dim");
}

TEST_F(ExportTest, NothingIsOverwritten) {
  WriteRun(kDense);
  Convert("run", "new");
  const absl::Status again = Export(files_, Path("run"), Path("new/"), {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(again));
  EXPECT_EQ(again.message(),
            Path("new") + " exists already, and nothing is overwritten: name a new directory");
  WriteTestFile(Path("file"), "");
  EXPECT_TRUE(absl::IsAlreadyExists(Export(files_, Path("run"), Path("file"), {}).status()));
}

TEST_F(ExportTest, AFailureLeavesNothing) {
  WriteRun(kMixture);
  ExportOptions options = kToHuggingFace;
  options.shard_bytes = 4000;
  FailingFiles counting(-1);
  ASSERT_TRUE(Export(counting, Path("run"), Path("new"), options).ok());
  ASSERT_GT(List("new").size(), 3);
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    FailingFiles files(fail_at);
    ASSERT_TRUE(files_.RemoveAll(Path("new")).ok());
    EXPECT_FALSE(Export(files, Path("run"), Path("new"), options).ok());
    // The last operation makes the name of what is whole durable.
    const bool is_last = fail_at == counting.operations() - 1;
    EXPECT_EQ(files_.Exists(Path("new")), is_last) << fail_at;
  }
}

}  // namespace
}  // namespace fathom
