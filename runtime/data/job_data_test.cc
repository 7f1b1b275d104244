#include "runtime/data/job_data.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/data/bpe_files.h"
#include "runtime/data/prepare.h"
#include "runtime/data/tokenizer.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

void Ignore(const std::string&) {}

class JobDataTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }

  // NAME.tokens (or NAME.bin and NAME.idx) of `bytes` copies of a letter.
  void Write(const std::string& name, char letter, int64_t bytes, const Tokenizer& tokenizer,
             TokenFormat format = TokenFormat::kFathom) {
    WriteTestFile(Path("text"), std::string(bytes, letter));
    PrepareOptions options;
    options.format = format;
    const std::string output = Path(name) + (format == TokenFormat::kFathom ? ".tokens" : "");
    const auto stats = PrepareTokens(PosixFileSystem(), {Path("text")}, tokenizer, output, options);
    ASSERT_TRUE(stats.ok()) << stats.status();
  }
  void Write(const std::string& name, char letter, int64_t bytes) {
    Write(name, letter, bytes, **MakeTokenizer("bytes"));
  }
  // A directory of a vocabulary of `size` tokens.
  std::string Vocabulary(const std::string& name, int64_t size) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "some words of text and some more words\n";
    WriteTestFile(Path("words"), text);
    const auto vocabulary = TrainVocabulary(PosixFileSystem(), {Path("words")}, size, {});
    EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
    EXPECT_TRUE(PosixFileSystem().CreateDirectories(Path(name)).ok());
    EXPECT_TRUE(WriteGpt2Files(PosixFileSystem(), Path(name), *vocabulary).ok());
    return Path(name);
  }
  Job MakeJob() {
    Job job;
    job.train.sequence_length = 4;
    job.model.vocabulary = 300;
    job.data.seed = 5;
    return job;
  }
  void ExpectRefused(const Job& job, const std::string& what) {
    const absl::Status status = OpenJobData(PosixFileSystem(), job, Ignore).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.ToString().find(what), std::string::npos) << status;
  }

  std::string directory_ = NewTestDirectory();
};

TEST_F(JobDataTest, ABlendGivesEachFileItsShare) {
  Write("a", 'a', 41);
  Write("b", 'b', 100, **MakeTokenizer("bytes"), TokenFormat::kMegatron);
  Job job = MakeJob();
  job.data.blend = {{Path("a"), 0.75}, {Path("b.bin"), 0.25}};
  const auto data = OpenJobData(PosixFileSystem(), job, Ignore);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->validation, nullptr);
  int64_t of_a = 0;
  for (int64_t n = 0; n < 400; ++n) {
    std::vector<int32_t> inputs(4), labels(4);
    ASSERT_TRUE(data->train->Fill(n, 1, inputs.data(), labels.data()).ok());
    of_a += inputs[0] == 'a';
    EXPECT_LT(std::abs(of_a - 0.75 * (n + 1)), 1) << n;
  }
  job.data.blend[1].weight = 0.12345678;
  ExpectRefused(job, "data.blend: weight 0.123457 should");
  job.data.blend[1].path = Path("missing");
  EXPECT_TRUE(absl::IsNotFound(OpenJobData(PosixFileSystem(), job, Ignore).status()));
}

TEST_F(JobDataTest, FilesOfDifferentTokenizersAreRefused) {
  const std::string first = Vocabulary("first", 260), second = Vocabulary("second", 261);
  Write("a", 'a', 50, **MakeTokenizer(first));
  Write("b", 'b', 50, **MakeTokenizer(second));
  Write("m", 'b', 50, **MakeTokenizer(second), TokenFormat::kMegatron);
  Job job = MakeJob();
  job.data.train = Path("a");
  job.data.validation = Path("m");  // does not say what it is of
  const auto data = OpenJobData(PosixFileSystem(), job, Ignore);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->tokenizer_hash, (*MakeTokenizer(first))->hash());
  EXPECT_NE(data->validation, nullptr);

  job.data.validation = Path("b");
  ExpectRefused(
      job, Path("b.tokens") + " was made with another tokenizer than " + Path("a.tokens") + ": ");
  job.data.validation = "";
  job.data.tokenizer = second;
  job.data.tokenizer_is_set = true;
  ExpectRefused(job, Path("a.tokens") + " was made with another tokenizer than data.tokenizer: ");
  job.data.tokenizer = first;
  EXPECT_TRUE(OpenJobData(PosixFileSystem(), job, Ignore).ok());

  std::map<std::string, int64_t> integers;
  RecordTokenizer(*data, &integers);
  EXPECT_TRUE(CheckRecordedTokenizer(integers, "step", *data).ok());
  EXPECT_TRUE(CheckRecordedTokenizer({}, "step", *data).ok());
  job.data.tokenizer_is_set = false;
  job.data.train = Path("b");
  const auto other = OpenJobData(PosixFileSystem(), job, Ignore);
  ASSERT_TRUE(other.ok()) << other.status();
  const absl::Status status = CheckRecordedTokenizer(integers, "step", *other);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find("step was trained on tokens of another tokenizer"),
            std::string::npos);
}

TEST_F(JobDataTest, ValidationAlone) {
  Write("v", 'v', 50);
  Job job = MakeJob();
  job.data.train = Path("v");
  EXPECT_EQ(OpenValidationData(PosixFileSystem(), job, Ignore)->validation, nullptr);
  job.data.validation = Path("v");
  const auto data = OpenValidationData(PosixFileSystem(), job, Ignore);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train, nullptr);
  EXPECT_EQ(data->validation->count(), 12);
}

}  // namespace
}  // namespace fathom
