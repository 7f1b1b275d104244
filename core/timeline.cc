#include "core/timeline.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false,
                                   nlohmann::json::error_handler_t::replace);
}

// The format's unit, without rounding.
std::string Microseconds(Timeline::Clock::duration time) {
  const int64_t nanoseconds = std::chrono::nanoseconds(time).count();
  return absl::StrFormat("%d.%03d", nanoseconds / 1000, nanoseconds % 1000);
}

// Viewers keep thread 0 for the idle thread.
int ThreadId(int track) { return track + 1; }

// A metadata event that says something about a process or thread.
std::string MetadataJson(std::string_view what, int process, int thread, std::string_view key,
                         std::string_view value) {
  return absl::StrFormat(R"({"name":"%s","ph":"M","pid":%d,"tid":%d,"args":{"%s":%s}})", what,
                         process, thread, key, value);
}

}  // namespace

int Timeline::Track(int rank, std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(tracks_.begin(), tracks_.end(), [&](const TrackName& track) {
    return track.rank == rank && track.name == name;
  });
  const int track = static_cast<int>(found - tracks_.begin());
  if (found == tracks_.end()) tracks_.push_back({rank, std::string(name)});
  return track;
}

void Timeline::AddSpan(int track, std::string_view name, Clock::time_point start,
                       Clock::time_point end, std::optional<int64_t> bytes) {
  FATHOM_CHECK(start <= end) << name << " ends before it starts";
  Add({track, std::string(name), start, end - start, bytes});
}

void Timeline::AddMark(int track, std::string_view name, Clock::time_point time) {
  Add({track, std::string(name), time, std::nullopt, std::nullopt});
}

void Timeline::Add(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FATHOM_CHECK(event.track >= 0 && event.track < static_cast<int>(tracks_.size()))
      << "no track " << event.track << " for " << event.name;
  events_.push_back(std::move(event));
}

void Timeline::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.clear();
}

absl::Status Timeline::Write(FileSystem& files, const std::string& path) const {
  return WriteFileAtomically(files, path, Json());
}

std::string Timeline::Json() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> lines;
  std::set<int> ranks;
  for (const TrackName& track : tracks_) ranks.insert(track.rank);
  for (const int rank : ranks) {
    lines.push_back(
        MetadataJson("process_name", rank, 0, "name", absl::StrCat("\"rank ", rank, "\"")));
    lines.push_back(MetadataJson("process_sort_index", rank, 0, "sort_index", absl::StrCat(rank)));
  }
  for (int track = 0; track < static_cast<int>(tracks_.size()); ++track) {
    const auto& [rank, name] = tracks_[track];
    lines.push_back(MetadataJson("thread_name", rank, ThreadId(track), "name", Quoted(name)));
    lines.push_back(MetadataJson("thread_sort_index", rank, ThreadId(track), "sort_index",
                                 absl::StrCat(track)));
  }
  // A span that contains another is recorded after it, but viewers want it first.
  std::vector<const Event*> order;
  for (const Event& event : events_) order.push_back(&event);
  std::stable_sort(order.begin(), order.end(), [](const Event* a, const Event* b) {
    return a->start != b->start ? a->start < b->start : a->duration > b->duration;
  });
  for (const Event* event : order) lines.push_back(EventJson(*event));

  std::string json = R"({"displayTimeUnit":"ns","traceEvents":[)";
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&json, i == 0 ? "\n" : ",\n", lines[i]);
  }
  return json + "\n]}\n";
}

std::string Timeline::EventJson(const Event& event) const {
  std::string json =
      absl::StrFormat(R"({"name":%s,"ph":"%s","pid":%d,"tid":%d,"ts":%s)", Quoted(event.name),
                      event.duration ? "X" : "i", tracks_[event.track].rank, ThreadId(event.track),
                      Microseconds(event.start.time_since_epoch()));
  if (event.duration) {
    absl::StrAppend(&json, R"(,"dur":)", Microseconds(*event.duration));
  } else {
    absl::StrAppend(&json, R"(,"s":"t")");  // drawn on its track alone
  }
  if (event.bytes) absl::StrAppend(&json, R"(,"args":{"bytes":)", *event.bytes, "}");
  return json + "}";
}

}  // namespace fathom
