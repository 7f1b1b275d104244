#include "runtime/huggingface/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/accounting.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/huggingface/model_files.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

ModelConfig Model() {
  ModelConfig model;
  model.d = 4;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 2;
  model.ffn = 6;
  model.vocabulary = 7;
  model.experts = 3;
  model.routed = 2;
  model.shared = 1;
  model.expert_ffn = 5;
  model.plan = MakeLayerPlan({{.repeat = 1}, {.layer = {.experts = true}}}, 0);
  return model;
}

// A model's weights, all different, with more digits than bfloat16 has.
class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const CountedParameter& parameter : EnumerateParameters(config_.model)) {
      Shape shape;
      for (const int64_t dim : parameter.dims) shape.Append(dim);
      std::vector<float>& values = data_.emplace_back(shape.elements());
      for (float& value : values) value = std::sin(++drawn_);
      weights_.arrays.push_back({parameter.name, DType::kFloat32, shape, values.data()});
    }
  }

  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  // The number of files.
  int64_t Write(int64_t shard_bytes, std::optional<DType> dtype = std::nullopt) {
    const auto files =
        WriteModelFiles(files_, directory_, weights_, {.dtype = dtype, .shard_bytes = shard_bytes});
    EXPECT_TRUE(files.ok()) << files.status();
    return files.value_or(0);
  }

  std::string Refusal() {
    const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << list.status();
    return std::string(list.status().message());
  }

  void ExpectSame(const TensorList& list) {
    ASSERT_EQ(list.arrays.size(), weights_.arrays.size());
    for (size_t i = 0; i < list.arrays.size(); ++i) {
      EXPECT_EQ(list.arrays[i].name, weights_.arrays[i].name);
      ASSERT_EQ(list.arrays[i].bytes(), weights_.arrays[i].bytes());
      EXPECT_EQ(std::memcmp(list.arrays[i].data, weights_.arrays[i].data, list.arrays[i].bytes()),
                0);
    }
  }

  NamedArray& Array(const std::string& name) {
    for (NamedArray& array : weights_.arrays) {
      if (array.name == name) return array;
    }
    ADD_FAILURE() << name;
    return weights_.arrays[0];
  }

  FileSystem& files_ = PosixFileSystem();
  std::string directory_ = NewTestDirectory();
  HuggingFaceConfig config_ = {.model = Model()};
  std::vector<std::vector<float>> data_;
  TensorList weights_;
  int drawn_ = 0;
};

TEST_F(WeightsTest, OneFileIsReadBack) {
  EXPECT_EQ(Write(1 << 20), 1);
  EXPECT_EQ(*files_.List(directory_), std::vector<std::string>{kModelFile});
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  ExpectSame(*list);
}

TEST_F(WeightsTest, ShardsAreReadBack) {
  const int64_t count = Write(300);
  ASSERT_GT(count, 3);
  EXPECT_EQ(files_.List(directory_)->size(), count + 1);
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  ExpectSame(*list);
}

TEST_F(WeightsTest, TheIndexListsEveryTensorAndNoShardIsTooLarge) {
  int64_t bytes = 0;
  for (const NamedArray& array : weights_.arrays) bytes += array.bytes();
  const int64_t limit = 200;
  ASSERT_GT(Write(limit), 3);
  const auto index = nlohmann::json::parse(*ReadFile(files_, Path(kShardIndexFile)));
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(index["weight_map"].size(), weights_.arrays.size());
  size_t tensors = 0;
  const std::vector<std::string> names = *files_.List(directory_);
  for (const std::string& name : names) {
    if (name == kShardIndexFile) continue;
    const auto shard = SafetensorsFile::Open(files_, Path(name));
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_EQ((*shard)->metadata().at("format"), "pt");
    int64_t size = 0;
    for (const NamedArray& array : (*shard)->tensors()) {
      EXPECT_EQ(index["weight_map"][array.name], name);
      size += array.bytes();
    }
    tensors += (*shard)->tensors().size();
    EXPECT_LE(size, limit);
  }
  EXPECT_EQ(tensors, weights_.arrays.size());
}

TEST_F(WeightsTest, EachTensorMayHaveAFileOfItsOwn) {
  EXPECT_EQ(Write(1), weights_.arrays.size());
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  ExpectSame(*list);
}

TEST_F(WeightsTest, BFloat16RoundsToNearestEvenButNotWhatChooses) {
  float* values = data_[0].data();
  values[0] = 1 + 1.0f / 256;   // a tie, down to even
  values[1] = 1 + 3.0f / 256;   // a tie, up to even
  values[2] = 1 + 1.01f / 256;  // above the tie
  values[3] = -1 - 3.0f / 256;  // a tie
  values[4] = 3e38f;
  const float rounded[] = {1, 1 + 4.0f / 256, 1 + 2.0f / 256, -1 - 4.0f / 256,
                           static_cast<float>(BFloat16(3e38f))};
  Write(1 << 20, DType::kBFloat16);
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->arrays[0].dtype, DType::kBFloat16);
  const auto* written = static_cast<const BFloat16*>(list->arrays[0].data);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(static_cast<float>(written[i]), rounded[i]) << i;
  for (size_t i = 0; i < list->arrays.size(); ++i) {
    const NamedArray& array = list->arrays[i];
    const bool chooses = array.name == "model.layers.1.mlp.gate.weight" ||
                         array.name == "model.layers.1.mlp.gate.e_score_correction_bias";
    EXPECT_EQ(array.dtype, chooses ? DType::kFloat32 : DType::kBFloat16) << array.name;
    if (!chooses) continue;
    EXPECT_EQ(std::memcmp(array.data, weights_.arrays[i].data, array.bytes()), 0);
  }
}

TEST_F(WeightsTest, WideNumbersAreRoundedOnceAndNarrowOnesWidened) {
  const double wide[4] = {0.1, -2, 1e300, 1 + 1e-12};
  const BFloat16 narrow[4] = {BFloat16(0.1), BFloat16(3), BFloat16(-0.0), BFloat16(1e-40)};
  Array("model.norm.weight") = {"model.norm.weight", DType::kFloat64, {4}, wide};
  Array("model.layers.0.input_layernorm.weight") = {
      "model.layers.0.input_layernorm.weight", DType::kBFloat16, {4}, narrow};
  Write(1 << 20, DType::kFloat32);
  const auto file = SafetensorsFile::Open(files_, Path(kModelFile));
  ASSERT_TRUE(file.ok()) << file.status();
  float values[4];
  ASSERT_TRUE((*file)->Read("model.norm.weight", DType::kFloat32, {4}, values).ok());
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_EQ(values[1], -2);
  EXPECT_EQ(values[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[3], 1);
  ASSERT_TRUE(
      (*file)->Read("model.layers.0.input_layernorm.weight", DType::kFloat32, {4}, values).ok());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(values[i], static_cast<float>(narrow[i]));
}

TEST_F(WeightsTest, LargeTensorsAreConvertedInPieces) {
  std::vector<float> values(200'003);
  std::iota(values.begin(), values.end(), 0.0f);
  TensorList list;
  list.arrays = {{"large", DType::kFloat32, {200'003}, values.data()}};
  ASSERT_TRUE(
      WriteModelFiles(files_, directory_, list, {.dtype = DType::kFloat64, .shard_bytes = 1}).ok());
  const auto file = SafetensorsFile::Open(files_, Path(kModelFile));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<double> read(values.size());
  ASSERT_TRUE((*file)->Read("large", DType::kFloat64, {200'003}, read.data()).ok());
  for (size_t i = 0; i < read.size(); ++i) ASSERT_EQ(read[i], i);
}

TEST_F(WeightsTest, ATiedHeadIsTheEmbedding) {
  config_.tied = true;
  const NamedArray head = Array("lm_head.weight");
  const NamedArray embedding = Array("model.embed_tokens.weight");
  weights_.arrays.pop_back();
  Write(1 << 20);
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(list->arrays.back().name, "lm_head.weight");
  EXPECT_EQ(std::memcmp(list->arrays.back().data, embedding.data, embedding.bytes()), 0);

  weights_.arrays.push_back(head);
  Write(1 << 20);
  EXPECT_EQ(Refusal(), directory_ +
                           ": tie_word_embeddings is true, but lm_head.weight is not "
                           "model.embed_tokens.weight");
  weights_.arrays.back().data = embedding.data;
  Write(1 << 20);
  EXPECT_TRUE(OpenHuggingFaceWeights(files_, directory_, config_).ok());
}

TEST_F(WeightsTest, TensorsOfAnotherModelAreRefused) {
  const NamedArray norm = Array("model.norm.weight");
  Array("model.norm.weight").name = "model.layers.2.eh_proj.weight";
  Write(1 << 20);
  EXPECT_EQ(Refusal(), directory_ + " has no tensor model.norm.weight, which the model needs");
  weights_.arrays.push_back(norm);
  Write(1 << 20);
  EXPECT_EQ(Refusal(),
            directory_ + " has a tensor model.layers.2.eh_proj.weight, which the model has not");
  Array("model.layers.2.eh_proj.weight") = {"empty", DType::kFloat32, {0, 4}, nullptr};
  Write(1 << 20);
  EXPECT_TRUE(OpenHuggingFaceWeights(files_, directory_, config_).ok());
  Array("model.norm.weight").shape = {2, 2};
  Write(1 << 20);
  EXPECT_EQ(Refusal(), directory_ + ": model.norm.weight is [2, 2], the model has [4]");
  const int32_t integers[4] = {};
  Array("model.norm.weight") = {"model.norm.weight", DType::kInt32, {4}, integers};
  Write(1 << 20);
  EXPECT_EQ(Refusal(),
            directory_ + ": model.norm.weight is int32, but weights are floating-point numbers");
}

TEST_F(WeightsTest, HalfPrecisionIsRefused) {
  std::string file = R"({"lm_head.weight":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})";
  const uint64_t size = file.size();
  file = std::string(reinterpret_cast<const char*>(&size), 8) + file + "xx";
  WriteTestFile(Path(kModelFile), file);
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  EXPECT_TRUE(absl::IsUnimplemented(list.status()));
  EXPECT_EQ(list.status().message(),
            Path(kModelFile) +
                ": tensor lm_head.weight has dtype F16, which is not supported; F32, "
                "F64, BF16, I32 and I64 are");
}

TEST_F(WeightsTest, AWrongIndexIsRefused) {
  ASSERT_GT(Write(300), 1);
  const std::string path = Path(kShardIndexFile);
  const auto good = nlohmann::json::parse(*ReadFile(files_, path));
  const std::string first = good["weight_map"]["model.embed_tokens.weight"];

  auto index = good;
  index["weight_map"]["model.embed_tokens.weight"] = good["weight_map"]["lm_head.weight"];
  WriteTestFile(path, index.dump());
  EXPECT_EQ(Refusal(), path + " says that model.embed_tokens.weight is in " +
                           good["weight_map"]["lm_head.weight"].get<std::string>() +
                           ", which has no such tensor");
  for (const nlohmann::json& file :
       {nlohmann::json("../x"), nlohmann::json(3), nlohmann::json("")}) {
    index["weight_map"]["model.embed_tokens.weight"] = file;
    WriteTestFile(path, index.dump());
    EXPECT_EQ(Refusal(), path + ": weight_map names no file for model.embed_tokens.weight");
  }
  for (const char* text : {"", "{}", R"({"weight_map": []})"}) {
    WriteTestFile(path, text);
    EXPECT_EQ(Refusal(), path + " has no object weight_map");
  }

  WriteTestFile(path, good.dump());
  ASSERT_TRUE(files_.RemoveAll(Path(first)).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenHuggingFaceWeights(files_, directory_, config_).status()));
  ASSERT_TRUE(files_.RemoveAll(path).ok());
  const absl::Status none = OpenHuggingFaceWeights(files_, directory_, config_).status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_EQ(none.message(), directory_ +
                                " has neither model.safetensors nor model.safetensors.index.json, "
                                "and weights in other formats are not read");
}

TEST_F(WeightsTest, ATensorInTwoShardsIsRefused) {
  const NamedArray embedding = Array("model.embed_tokens.weight");
  const NamedArray norm = Array("model.norm.weight");
  ASSERT_TRUE(WriteSafetensorsFile(files_, Path("a"), {embedding, norm}, {}).ok());
  ASSERT_TRUE(WriteSafetensorsFile(files_, Path("b"), {norm}, {}).ok());
  WriteTestFile(Path(kShardIndexFile),
                R"({"weight_map": {"model.embed_tokens.weight": "a", "model.norm.weight": "b"}})");
  EXPECT_EQ(Refusal(), directory_ + ": model.norm.weight is in a and in b");
}

TEST_F(WeightsTest, TensorsMayComeFromALoader) {
  TensorList loaded;
  loaded.arrays = weights_.arrays;
  std::vector<NamedArray> kept = weights_.arrays;
  std::reverse(loaded.arrays.begin(), loaded.arrays.end());
  std::reverse(kept.begin(), kept.end());
  for (NamedArray& array : loaded.arrays) array.data = nullptr;
  loaded.load = [kept](size_t i) -> absl::StatusOr<const void*> { return kept[i].data; };
  const auto selected = SelectModelTensors(config_.model, loaded, "list");
  ASSERT_TRUE(selected.ok()) << selected.status();
  ASSERT_TRUE(WriteModelFiles(files_, directory_, *selected, {.shard_bytes = 300}).ok());
  const auto list = OpenHuggingFaceWeights(files_, directory_, config_);
  ASSERT_TRUE(list.ok()) << list.status();
  ExpectSame(*list);
  loaded.load = [](size_t) -> absl::StatusOr<const void*> { return absl::DataLossError("no"); };
  const auto failing = SelectModelTensors(config_.model, loaded, "list");
  ASSERT_TRUE(failing.ok());
  EXPECT_TRUE(absl::IsDataLoss(
      WriteModelFiles(files_, directory_, *failing, {.shard_bytes = 300}).status()));
}

}  // namespace
}  // namespace fathom
