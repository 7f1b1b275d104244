#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/accounting.h"
#include "core/job.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

constexpr char kJob[] =
    "model { d: 8 heads: 2 kv_heads: 1 head_dim: 4 ffn: 12 vocabulary: 257 plan { dense {} } } "
    "data { text: 'text' } train { steps: 1 sequence_length: 16 }";

struct Result {
  int status;
  std::string errors;
};

Result Convert(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStderr();
  const int status = ConvertMain(argv.size(), argv.data());
  return {status, ::testing::internal::GetCapturedStderr()};
}

class ConvertMainTest : public ::testing::Test {
 protected:
  // Weights of kJob's model, all 0, and the job.
  void SetUp() override {
    WriteTestFile(Path("job.txtpb"), kJob);
    const std::vector<float> zeros(257 * 8);
    std::vector<NamedArray> arrays;
    for (const CountedParameter& parameter :
         EnumerateParameters(ReadJob(Path("job.txtpb"), {})->model)) {
      Shape shape;
      for (const int64_t dim : parameter.dims) shape.Append(dim);
      arrays.push_back({parameter.name, DType::kFloat32, shape, zeros.data()});
    }
    ASSERT_TRUE(WriteSafetensorsFile(files_, Path("weights"), arrays, {}).ok());
  }
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  FileSystem& files_ = PosixFileSystem();
  std::string directory_ = NewTestDirectory();
};

TEST_F(ConvertMainTest, FlagsReachTheConversion) {
  const Result there = Convert({Path("weights"), Path("hf"), "--format", "huggingface", "--job",
                                Path("job.txtpb"), "--dtype=bf16", "--shard-size=5000"});
  ASSERT_EQ(there.status, kDone) << there.errors;
  EXPECT_EQ(there.errors, "the weights are in 2 files\n" + Path("hf") + " is written\n");
  const auto shard = SafetensorsFile::Open(files_, Path("hf/model-00001-of-00002.safetensors"));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ((*shard)->Find("model.embed_tokens.weight")->dtype, DType::kBFloat16);

  const Result back = Convert({Path("hf"), Path("back"), "--dtype", "fp32"});
  ASSERT_EQ(back.status, kDone) << back.errors;
  const auto file = SafetensorsFile::Open(files_, Path("back/model.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Find("model.embed_tokens.weight")->dtype, DType::kFloat32);
  EXPECT_TRUE(ReadJob(Path("back/job.txtpb"), {}).ok());
}

TEST_F(ConvertMainTest, WrongFlagsAreRefused) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--format", "gguf"}, "--format is \"gguf\", but it must be checkpoint or huggingface"},
      {{"--dtype", "fp16"}, "--dtype is \"fp16\", but it must be bf16 or fp32"},
      {{"--shard-size", "5"}, "--shard-size is given, but it is only for --format huggingface"},
      {{"--job", "a"}, "--job is given, but it is only for --format huggingface"},
      {{"--format", "huggingface", "--shard-size", "0"},
       "--shard-size is \"0\", but it must be a number of bytes, 1 or more"},
      {{"--format", "huggingface", "--shard-size", "5GB"},
       "--shard-size is \"5GB\", but it must be a number of bytes, 1 or more"},
      {{"third"},
       "what to convert and a directory are needed, 3 words were given; \"fathom convert --help\" "
       "shows an example"}};
  for (auto [words, message] : cases) {
    words.insert(words.begin(), {Path("weights"), Path("new")});
    const Result result = Convert(words);
    EXPECT_EQ(result.status, kRefused);
    EXPECT_EQ(result.errors, "fathom convert: " + message + "\n");
    EXPECT_FALSE(files_.Exists(Path("new")));
  }
}

}  // namespace
}  // namespace fathom
