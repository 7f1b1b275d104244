#include "runtime/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nlohmann/json.hpp"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

TrainRecord Train(int64_t step) {
  return {.step = step,
          .consumed_sequences = 8 * step,
          .loss = 1.0 / 3 + step,
          .auxiliary_loss = 1e-300,
          .gradient_norm = 0.1,
          .learning_rate = 3.2e-3,
          .tokens_per_second = 12345.678,
          .seconds = 2};
}

std::string Line(int64_t step) { return FormatRecord(Train(step)) + "\n"; }

TEST(FormatRecordTest, NumbersReadBackExactly) {
  const auto json = nlohmann::json::parse(FormatRecord(Train(7)));
  EXPECT_EQ(json.size(), 9);
  EXPECT_EQ(json["kind"], "train");
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["consumed_sequences"], 56);
  EXPECT_EQ(json["loss"].get<double>(), 1.0 / 3 + 7);
  EXPECT_EQ(json["auxiliary_loss"].get<double>(), 1e-300);
  EXPECT_EQ(json["gradient_norm"].get<double>(), 0.1);
  EXPECT_EQ(json["learning_rate"].get<double>(), 3.2e-3);
  EXPECT_EQ(json["tokens_per_second"].get<double>(), 12345.678);
  EXPECT_EQ(json["seconds"].get<double>(), 2);
  EXPECT_NE(FormatRecord(Train(7)).find("\"gradient_norm\": 0.10000000000000001"),
            std::string::npos);
}

TEST(FormatRecordTest, Validation) {
  const auto json = nlohmann::json::parse(FormatRecord(
      ValidationRecord{.step = 3, .consumed_sequences = 6, .loss_topk = 2.5, .loss_causal = 2.75}));
  EXPECT_EQ(json["kind"], "validation");
  EXPECT_EQ(json["loss_topk"], 2.5);
  EXPECT_EQ(json["loss_causal"], 2.75);
}

TEST(FormatRecordTest, WhatIsNotFiniteIsNull) {
  TrainRecord record = Train(1);
  record.loss = NAN;
  record.gradient_norm = INFINITY;
  const auto json = nlohmann::json::parse(FormatRecord(record));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["gradient_norm"].is_null());
}

class MetricsWriterTest : public ::testing::Test {
 protected:
  std::string Text() { return *ReadFile(PosixFileSystem(), path_); }
  const std::string directory_ = NewTestDirectory();
  const std::string path_ = JoinPath(directory_, "metrics.jsonl");
};

TEST_F(MetricsWriterTest, EveryLineIsThereAtOnce) {
  WriteTestFile(path_, "of an older run\n");
  auto writer = MetricsWriter::Create(PosixFileSystem(), path_);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(Text(), "");
  ASSERT_TRUE((*writer)->Write(Train(1)).ok());
  EXPECT_EQ(Text(), Line(1));
  ASSERT_TRUE((*writer)->Write(ValidationRecord{.step = 1}).ok());
  EXPECT_EQ(Text(), Line(1) + FormatRecord(ValidationRecord{.step = 1}) + "\n");
  EXPECT_TRUE((*writer)->Close().ok());
}

TEST_F(MetricsWriterTest, ResumeDropsLaterRecordsAndTornLines) {
  const std::string validation = FormatRecord(ValidationRecord{.step = 2}) + "\n";
  const std::string later = FormatRecord(ValidationRecord{.step = 3}) + "\n";
  for (size_t torn = 0; torn < Line(5).size(); ++torn) {
    WriteTestFile(path_, Line(1) + Line(2) + validation + "{\"kind\": garbage\n" + Line(3) + later +
                             Line(4) + Line(5).substr(0, torn));
    auto writer = MetricsWriter::OpenForResume(PosixFileSystem(), path_, 2);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Write(Train(3)).ok());
    EXPECT_EQ(Text(), Line(1) + Line(2) + validation + Line(3));
  }
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 1);
}

TEST_F(MetricsWriterTest, ResumeKeepsATornLineFromJoiningTheNext) {
  WriteTestFile(path_, Line(1) + Line(2).substr(0, 20));
  auto writer = MetricsWriter::OpenForResume(PosixFileSystem(), path_, 9);
  ASSERT_TRUE((*writer)->Write(Train(10)).ok());
  EXPECT_EQ(Text(), Line(1) + Line(10));
}

TEST_F(MetricsWriterTest, ResumeWithoutAFileStartsEmpty) {
  auto writer = MetricsWriter::OpenForResume(PosixFileSystem(), path_, 2);
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Write(Train(3)).ok());
  EXPECT_EQ(Text(), Line(3));
}

TEST_F(MetricsWriterTest, AFailedResumeChangesNothing) {
  const std::string text = Line(1) + Line(2) + Line(3);
  WriteTestFile(path_, text);
  for (const int64_t fail_at : {0, 1, 2, 3, 4}) {  // open, append, sync, close, rename
    FailingFiles files(fail_at);
    EXPECT_FALSE(MetricsWriter::OpenForResume(files, path_, 1).ok());
    EXPECT_EQ(Text(), text);
  }
}

TEST_F(MetricsWriterTest, FailedWritesAreReported) {
  FailingFiles files(2);
  auto writer = MetricsWriter::Create(files, path_);
  EXPECT_TRUE((*writer)->Write(Train(1)).ok());
  EXPECT_FALSE((*writer)->Write(Train(2)).ok());
}

}  // namespace
}  // namespace fathom
