#include "core/timeline.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>
#include <utility>

#include "nlohmann/json.hpp"

namespace fathom {
namespace {

using nlohmann::json;

Timeline::Clock::time_point At(int64_t nanoseconds) {
  return Timeline::Clock::time_point(std::chrono::nanoseconds(nanoseconds));
}

class TimelineTest : public ::testing::Test {
 protected:
  TimelineTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = JoinPath(::testing::TempDir(), std::string("timeline_test_") + test->name());
  }
  // The file's text after Write.
  std::string Text() {
    const absl::Status written = timeline_.Write(PosixFileSystem(), path_);
    EXPECT_TRUE(written.ok()) << written;
    return *ReadFile(PosixFileSystem(), path_);
  }
  // Its events, those of metadata apart from the others.
  json Events(bool metadata = false) {
    const json events = json::parse(Text())["traceEvents"];
    json wanted = json::array();
    for (const json& event : events) {
      if ((event["ph"] == "M") == metadata) wanted.push_back(event);
    }
    return wanted;
  }

  Timeline timeline_;
  std::string path_;
};

TEST_F(TimelineTest, EmptyIsAFileWithoutEvents) {
  EXPECT_EQ(json::parse(Text()), json({{"displayTimeUnit", "ns"}, {"traceEvents", json::array()}}));
}

TEST_F(TimelineTest, WritesEveryField) {
  const int lane = timeline_.Track(3, "lane 0");
  timeline_.AddSpan(lane, "matmul", At(5'000'001'002), At(5'000'004'000), 123'456'789'012);
  timeline_.AddMark(lane, "step 7", At(6'000'000'000));
  timeline_.AddSpan(lane, "sum", At(7'000'000'000), At(7'000'000'000));
  EXPECT_EQ(json::parse(Text()), json::parse(R"({
    "displayTimeUnit": "ns",
    "traceEvents": [
      {"name": "process_name", "ph": "M", "pid": 3, "tid": 0, "args": {"name": "rank 3"}},
      {"name": "process_sort_index", "ph": "M", "pid": 3, "tid": 0, "args": {"sort_index": 3}},
      {"name": "thread_name", "ph": "M", "pid": 3, "tid": 1, "args": {"name": "lane 0"}},
      {"name": "thread_sort_index", "ph": "M", "pid": 3, "tid": 1, "args": {"sort_index": 0}},
      {"name": "matmul", "ph": "X", "pid": 3, "tid": 1, "ts": 5000001.002, "dur": 2.998,
       "args": {"bytes": 123456789012}},
      {"name": "step 7", "ph": "i", "pid": 3, "tid": 1, "ts": 6000000.0, "s": "t"},
      {"name": "sum", "ph": "X", "pid": 3, "tid": 1, "ts": 7000000.0, "dur": 0.0}
    ]})"));
}

TEST_F(TimelineTest, TracksHaveARankAndAName) {
  const int first = timeline_.Track(1, "lane 0");
  const int second = timeline_.Track(1, "communication");
  const int other_rank = timeline_.Track(0, "lane 0");
  EXPECT_EQ((std::set<int>{first, second, other_rank}.size()), 3);
  EXPECT_EQ(timeline_.Track(1, "lane 0"), first);
  EXPECT_EQ(timeline_.Track(1, "communication"), second);
  EXPECT_EQ(timeline_.Track(0, "lane 0"), other_rank);
  timeline_.AddSpan(first, "a", At(1), At(2));
  timeline_.AddSpan(second, "b", At(1), At(2));
  timeline_.AddSpan(other_rank, "c", At(1), At(2));

  std::map<int, std::pair<int, std::string>> threads;  // tid: (pid, name)
  std::map<int, std::string> processes;
  for (const json& event : Events(/*metadata=*/true)) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["name"] == "thread_name") {
      threads[event["tid"]] = {event["pid"], event["args"]["name"]};
    }
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  std::map<std::string, std::pair<int, std::string>> found;
  for (const json& event : Events()) {
    found[event["name"]] = threads.at(event["tid"]);
    EXPECT_EQ(event["pid"], threads.at(event["tid"]).first);
  }
  EXPECT_EQ(found, (std::map<std::string, std::pair<int, std::string>>{
                       {"a", {1, "lane 0"}}, {"b", {1, "communication"}}, {"c", {0, "lane 0"}}}));
}

TEST_F(TimelineTest, OuterSpansComeBeforeInnerOnes) {
  const int track = timeline_.Track(0, "lane 0");
  timeline_.AddSpan(track, "first inner", At(100), At(200));
  timeline_.AddMark(track, "mark", At(100));
  timeline_.AddSpan(track, "second inner", At(250), At(300));
  timeline_.AddSpan(track, "outer", At(100), At(300));
  timeline_.AddSpan(track, "earlier", At(10), At(90));
  std::vector<std::string> names;
  for (const json& event : Events()) names.push_back(event["name"]);
  EXPECT_EQ(names,
            (std::vector<std::string>{"earlier", "outer", "first inner", "mark", "second inner"}));
}

TEST_F(TimelineTest, NamesAreEscaped) {
  const std::string name = "a \"quoted\" \\ name,\n\ttab, \x01, \xc3\xa4 and \xe2\x86\x92";
  timeline_.AddSpan(timeline_.Track(0, name), name, At(1), At(2));
  timeline_.AddMark(timeline_.Track(0, name), "broken \xff byte", At(3));
  EXPECT_NE(Text().find(R"("a \"quoted\" \\ name,\n\ttab, \u0001, ä and →")"), std::string::npos);
  EXPECT_EQ(Events()[0]["name"], name);
  EXPECT_EQ(Events()[1]["name"], "broken \xef\xbf\xbd byte");
  EXPECT_EQ(Events(/*metadata=*/true)[2]["args"]["name"], name);
}

TEST_F(TimelineTest, ClearForgetsEventsAndKeepsTracks) {
  const int track = timeline_.Track(0, "lane 0");
  timeline_.AddSpan(track, "old", At(1), At(2));
  timeline_.Clear();
  EXPECT_EQ(Events(), json::array());
  timeline_.AddSpan(track, "new", At(3), At(4));
  EXPECT_EQ(Events().size(), 1);
  EXPECT_EQ(Events()[0]["name"], "new");
  EXPECT_EQ(timeline_.Track(0, "lane 0"), track);
}

TEST_F(TimelineTest, ThreadsRecordAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 500;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank) {
    threads.emplace_back([this, rank] {
      for (int i = 0; i < kSpans; ++i) {
        const Timeline::Clock::time_point start = Timeline::Clock::now();
        const int track = timeline_.Track(rank, i % 2 == 0 ? "lane 0" : "lane 1");
        timeline_.AddSpan(track, "span", start, Timeline::Clock::now(), rank * kSpans + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<int, std::set<int>> threads_of_rank;
  std::set<int64_t> seen;
  for (const json& event : Events()) {
    const int64_t bytes = event["args"]["bytes"];
    EXPECT_EQ(event["pid"], bytes / kSpans);
    threads_of_rank[event["pid"]].insert(event["tid"].get<int>());
    EXPECT_TRUE(seen.insert(bytes).second);
  }
  EXPECT_EQ(seen.size(), kThreads * kSpans);
  for (const auto& [rank, tids] : threads_of_rank) EXPECT_EQ(tids.size(), 2) << rank;
}

TEST_F(TimelineTest, WriteSaysWhatFailed) {
  path_ = JoinPath(::testing::TempDir(), "no such directory/timeline.json");
  const absl::Status status = timeline_.Write(PosixFileSystem(), path_);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.ToString().find("no such directory"), std::string::npos) << status;
}

TEST_F(TimelineTest, MisuseEndsTheProcess) {
  const int track = timeline_.Track(0, "lane 0");
  EXPECT_DEATH(timeline_.AddSpan(track, "backwards", At(2), At(1)), "backwards ends before");
  EXPECT_DEATH(timeline_.AddSpan(track + 1, "astray", At(1), At(2)), "no track 1 for astray");
}

}  // namespace
}  // namespace fathom
