#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/file.h"

namespace fathom {

// What happened when: spans and marks on named tracks, which Perfetto (ui.perfetto.dev) and
// chrome://tracing show. A track is one row of the picture, for example "lane 0" of a rank; viewers
// want the spans of one track to nest or to lie apart, so what runs at the same time has tracks of
// its own.
//
// Everything is kept in memory until it is cleared, so record some steps and not a whole run. Code
// that may record holds a Timeline*, which is null when nobody looks. Thread-safe: the ranks of one
// process may share a timeline.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // The track of that rank and name, which is made when it is new. Viewers show a rank's tracks in
  // the order in which they were made.
  int Track(int rank, std::string_view name);

  // What took from `start` to `end` (not before `start`), and how many bytes it moved.
  void AddSpan(int track, std::string_view name, Clock::time_point start, Clock::time_point end,
               std::optional<int64_t> bytes = std::nullopt);
  // What took no time.
  void AddMark(int track, std::string_view name, Clock::time_point time);

  // Forgets spans and marks, but no track.
  void Clear();

  // Writes all that was added as JSON in Chrome's trace event format: process = rank, thread =
  // track, times in microseconds of the steady clock. That clock is the machine's, so that the
  // files of the processes of one machine fit together. Invalid UTF-8 in a name is replaced. The
  // file appears whole or not at all.
  absl::Status Write(FileSystem& files, const std::string& path) const;

 private:
  struct TrackName {
    int rank;
    std::string name;
  };
  struct Event {
    int track;
    std::string name;
    Clock::time_point start;
    std::optional<Clock::duration> duration;  // absent: a mark
    std::optional<int64_t> bytes;
  };

  void Add(Event event);
  std::string Json() const;
  std::string EventJson(const Event& event) const;

  mutable std::mutex mutex_;
  std::vector<TrackName> tracks_;
  std::vector<Event> events_;
};

}  // namespace fathom
