#include "kernels/launch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ratio>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/timeline.h"
#include "kernels/elementwise.h"
#include "kernels/testing.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

// The spans in a timeline.
std::vector<nlohmann::json> Spans(const Timeline& timeline) {
  const std::string path = JoinPath(::testing::TempDir(), "launch_test.json");
  EXPECT_TRUE(timeline.Write(PosixFileSystem(), path).ok());
  const auto file = nlohmann::json::parse(*ReadFile(PosixFileSystem(), path));
  std::vector<nlohmann::json> spans;
  for (const auto& event : file["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  return spans;
}

double Microseconds(Timeline::Clock::time_point time) {
  return std::chrono::duration<double, std::micro>(time.time_since_epoch()).count();
}

double End(const nlohmann::json& span) {
  return span["ts"].get<double>() + span["dur"].get<double>();
}

TEST(Launch, RecordsOneSpanForEachOperationOnTheStreamsTrack) {
  testing::Cpu cpu;
  std::vector<float> x(8, 0.0f);
  std::vector<float> y(8, 0.0f);
  const Fill fill{.value = 3, .y = testing::View(x)};
  const Copy copy{.x = testing::View(x), .y = testing::View(y)};
  Timeline timeline;
  const int lane0 = timeline.Track(2, "lane 0");
  const int lane1 = timeline.Track(2, "lane 1");

  cpu(fill);
  EXPECT_TRUE(Spans(timeline).empty());
  const double before = Microseconds(Timeline::Clock::now());
  cpu.stream->RecordOn(&timeline, lane1);
  cpu(fill);
  cpu.stream->RecordOn(&timeline, lane0);
  cpu(copy);
  cpu.stream->RecordOn(nullptr, 0);
  cpu(copy);
  const double after = Microseconds(Timeline::Clock::now());

  const std::vector<nlohmann::json> spans = Spans(timeline);
  ASSERT_EQ(spans.size(), 2);
  EXPECT_EQ(spans[0]["name"], "fill");
  EXPECT_EQ(spans[0]["args"]["bytes"], 8 * 4);
  EXPECT_EQ(spans[1]["name"], "copy");
  EXPECT_EQ(spans[1]["args"]["bytes"], 2 * 8 * 4);
  EXPECT_EQ(spans[0]["tid"].get<int>() - spans[1]["tid"].get<int>(), lane1 - lane0);
  const double times[] = {before,         spans[0]["ts"], End(spans[0]),
                          spans[1]["ts"], End(spans[1]),  after};
  for (int i = 0; i + 1 < 6; ++i) EXPECT_LE(times[i], times[i + 1] + 1e-3) << i;
  EXPECT_EQ(y, std::vector<float>(8, 3.0f));
  EXPECT_EQ(cpu.stream->ledger().entries().at("fill").launches, 2);
  EXPECT_EQ(cpu.stream->ledger().entries().at("copy").launches, 2);
}

}  // namespace
}  // namespace fathom
