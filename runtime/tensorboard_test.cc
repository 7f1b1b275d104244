#include "runtime/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "proto/tensorboard_event.pb.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

using Event = proto::TensorBoardEvent;

// The sum bit by bit, from the definition of the polynomial.
uint32_t SlowCrc32c(std::string_view data) {
  uint32_t crc = 0xffffffff;
  for (const char c : data) {
    for (int bit = 0; bit < 8; ++bit) {
      const uint32_t in = (static_cast<uint8_t>(c) >> bit) & 1;
      crc = (crc >> 1) ^ (((crc & 1) ^ in) ? 0x82f63b78u : 0);
    }
  }
  return ~crc;
}

template <class T>
T Take(std::string_view* text) {
  T value;
  std::memcpy(&value, text->data(), sizeof(value));
  text->remove_prefix(sizeof(value));
  return value;
}

uint32_t Unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

std::vector<Event> ReadEvents(const std::string& path) {
  const std::string contents = *ReadFile(PosixFileSystem(), path);
  std::string_view rest = contents;
  std::vector<Event> events;
  while (rest.size() >= 12) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const uint64_t length = Take<uint64_t>(&rest);
    EXPECT_EQ(Unmask(Take<uint32_t>(&rest)), SlowCrc32c(length_bytes));
    const std::string_view data = rest.substr(0, length);
    rest.remove_prefix(length);
    EXPECT_EQ(Unmask(Take<uint32_t>(&rest)), SlowCrc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(data)));
  }
  EXPECT_TRUE(rest.empty());
  return events;
}

std::map<std::string, float> ValuesOf(const Event& event) {
  std::map<std::string, float> values;
  for (const auto& value : event.summary().value()) values[value.tag()] = value.simple_value();
  return values;
}

TEST(TensorBoardTest, Crc32cKnownAnswers) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogue.
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(TensorBoardTest, AFileHoldsTheNumbersOfTheRecords) {
  const std::string directory = NewTestDirectory();
  auto writer = EventWriter::Create(PosixFileSystem(), directory, /*step=*/0, /*now=*/1234.5);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)
                  ->Write(TrainRecord{.step = 3,
                                      .consumed_sequences = 24,
                                      .loss = 5.5,
                                      .auxiliary_loss = 0.25,
                                      .gradient_norm = NAN,
                                      .learning_rate = 0.125,
                                      .tokens_per_second = 1000,
                                      .seconds = 2},
                          1235)
                  .ok());
  ASSERT_TRUE((*writer)
                  ->Write(ValidationRecord{.step = 4,
                                           .consumed_sequences = 32,
                                           .loss_topk = 4.5,
                                           .loss_causal = 4.75,
                                           .seconds = 3},
                          1236)
                  .ok());
  EXPECT_EQ(*PosixFileSystem().List(directory),
            std::vector<std::string>{"events.out.tfevents.0000001234.fathom"});
  const auto events = ReadEvents(JoinPath(directory, "events.out.tfevents.0000001234.fathom"));
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1234.5);
  EXPECT_EQ(events[1].step(), 3);
  EXPECT_EQ(events[1].wall_time(), 1235);
  auto values = ValuesOf(events[1]);
  EXPECT_TRUE(std::isnan(values["train/gradient_norm"]));
  values.erase("train/gradient_norm");
  EXPECT_EQ(values, (std::map<std::string, float>{{"train/consumed_sequences", 24},
                                                  {"train/loss", 5.5},
                                                  {"train/auxiliary_loss", 0.25},
                                                  {"train/learning_rate", 0.125},
                                                  {"train/tokens_per_second", 1000},
                                                  {"train/seconds", 2}}));
  EXPECT_EQ(events[2].step(), 4);
  EXPECT_EQ(ValuesOf(events[2]),
            (std::map<std::string, float>{{"validation/consumed_sequences", 32},
                                          {"validation/loss_topk", 4.5},
                                          {"validation/loss_causal", 4.75},
                                          {"validation/seconds", 3}}));
}

TEST(TensorBoardTest, AResumedRunWritesALaterFileThatDropsLaterSteps) {
  const std::string directory = NewTestDirectory();
  FileSystem& files = PosixFileSystem();
  ASSERT_TRUE(EventWriter::Create(files, directory, 0, 5000).ok());
  // In the same second, and with a clock that was set back.
  ASSERT_TRUE(EventWriter::Create(files, directory, 7, 5000).ok());
  ASSERT_TRUE(EventWriter::Create(files, directory, 9, 4000).ok());
  const std::vector<std::string> names = *files.List(directory);
  EXPECT_EQ(names, (std::vector<std::string>{"events.out.tfevents.0000005000.fathom",
                                             "events.out.tfevents.0000005001.fathom",
                                             "events.out.tfevents.0000005002.fathom"}));
  EXPECT_EQ(ReadEvents(JoinPath(directory, names[0])).size(), 1);
  const auto events = ReadEvents(JoinPath(directory, names[2]));
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[1].session_log().status(), proto::TensorBoardSessionLog::START);
  EXPECT_EQ(events[1].step(), 10);
}

TEST(TensorBoardTest, AFullDiskIsReported) {
  const std::string directory = NewTestDirectory();
  FailingFiles files(1);
  EXPECT_FALSE(EventWriter::Create(files, directory, 0, 1).ok());
}

}  // namespace
}  // namespace fathom
