#include "runtime/data/prepared_data.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "runtime/data/token_file.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

class PreparedDataTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }
  DataConfig Config() {
    DataConfig config;
    config.text = {Path("gcide.dict.dz"), Path("second.txt")};
    config.validation_fraction = 0.1;
    config.directory = Path("data/deep");
    return config;
  }
  absl::StatusOr<PreparedData> Ensure(const DataConfig& config) {
    log_.clear();
    return EnsurePrepared(PosixFileSystem(), config,
                          [this](const std::string& line) { log_ += line + "\n"; });
  }
  // The one document of a token file.
  std::string Text(const std::string& path) {
    auto file = TokenFile::Open(PosixFileSystem(), path);
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return "";
    EXPECT_EQ((*file)->documents(), 1);
    std::vector<int32_t> tokens((*file)->tokens());
    (*file)->Read(0, tokens.size(), tokens.data());
    EXPECT_EQ(tokens.back(), 256);
    return std::string(tokens.begin(), tokens.end() - 1);
  }

  std::string directory_ = NewTestDirectory();
  std::string log_;
  const std::string text_ = "abcdefghijklmnopqrstuvwxyz0123";  // 30 bytes
};

TEST_F(PreparedDataTest, SplitsTheFirstTextThatExists) {
  WriteTestFile(Path("second.txt"), text_);
  auto data = Ensure(Config());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Text(data->train), text_.substr(0, 27));
  EXPECT_EQ(Text(data->validation), text_.substr(27));
  EXPECT_NE(log_.find(Path("gcide.dict.dz") +
                      " is missing (Debian: apt-get install dict-gcide): training on " +
                      Path("second.txt") + " instead"),
            std::string::npos)
      << log_;
  WriteTestFile(Path("gcide.dict.dz"), "0123456789");
  data = Ensure(Config());
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(Text(data->train), "012345678");
  EXPECT_EQ(log_.find("missing"), std::string::npos);
}

TEST_F(PreparedDataTest, JsonLinesAreNoText) {
  WriteTestFile(Path("a.jsonl.gz"), "{}");
  DataConfig config = Config();
  config.text = {Path("a.jsonl.gz")};
  const absl::Status status = Ensure(config).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find(Path("a.jsonl.gz") + ", which holds JSON lines"),
            std::string::npos)
      << status;
}

TEST_F(PreparedDataTest, LimitsTheText) {
  WriteTestFile(Path("second.txt"), text_);
  DataConfig config = Config();
  config.text_bytes = 20;
  auto data = Ensure(config);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(Text(data->train), text_.substr(0, 18));
  EXPECT_EQ(Text(data->validation), text_.substr(18, 2));
}

TEST_F(PreparedDataTest, WithoutAFractionThereIsNoValidation) {
  WriteTestFile(Path("second.txt"), text_);
  DataConfig config = Config();
  config.validation_fraction = 0;
  auto data = Ensure(config);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(Text(data->train), text_);
  EXPECT_EQ(data->validation, "");
}

TEST_F(PreparedDataTest, ReusesFilesOfTheSameTextAlone) {
  WriteTestFile(Path("second.txt"), text_);
  const PreparedData first = *Ensure(Config());
  const PreparedData again = *Ensure(Config());
  EXPECT_EQ(first.train, again.train);
  EXPECT_EQ(log_.find("prepared"), std::string::npos);
  DataConfig other = Config();
  other.validation_fraction = 0.2;
  EXPECT_NE(Ensure(other)->train, first.train);
  std::string changed = text_;
  changed[0] = 'X';
  WriteTestFile(Path("second.txt"), changed);
  EXPECT_NE(Ensure(Config())->train, first.train);
}

TEST_F(PreparedDataTest, ManyAtOnceAllGetWholeFiles) {
  WriteTestFile(Path("second.txt"), text_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      auto data = EnsurePrepared(PosixFileSystem(), Config(), [](const std::string&) {});
      ASSERT_TRUE(data.ok()) << data.status();
      EXPECT_EQ(Text(data->train), text_.substr(0, 27));
      EXPECT_EQ(Text(data->validation), text_.substr(27));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PosixFileSystem().List(Path("data/deep"))->size(), 2);  // no temporary files
}

TEST_F(PreparedDataTest, DamagedFilesAreMadeAgain) {
  WriteTestFile(Path("second.txt"), text_);
  const PreparedData data = *Ensure(Config());
  ASSERT_TRUE(PosixFileSystem().Truncate(data.validation, 50).ok());
  ASSERT_TRUE(Ensure(Config()).ok());
  EXPECT_EQ(Text(data.validation), text_.substr(27));
}

TEST_F(PreparedDataTest, NoTextAtAllIsAnErrorThatNamesAll) {
  const absl::Status status = Ensure(Config()).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.ToString().find("dict-gcide"), std::string::npos) << status;
  EXPECT_NE(status.ToString().find("second.txt is missing"), std::string::npos) << status;
}

TEST_F(PreparedDataTest, NamedFilesAreTakenAsTheyAre) {
  WriteTestFile(Path("second.txt"), text_);
  const PreparedData made = *Ensure(Config());
  DataConfig config;
  config.train = made.train.substr(0, made.train.size() - 7);  // without ".tokens"
  auto data = Ensure(config);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train, made.train);
  EXPECT_EQ(data->validation, "");
  config.validation = made.validation;
  EXPECT_EQ(Ensure(config)->validation, made.validation);
  config.validation = Path("nowhere");
  const absl::Status status = Ensure(config).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.ToString().find(Path("nowhere")), std::string::npos);
}

}  // namespace
}  // namespace fathom
