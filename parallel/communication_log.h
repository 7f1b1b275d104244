#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "parallel/collective.h"

namespace fathom {

// What one rank asked of its communicators, in the order of the calls. Operations of groups of one
// are not recorded, since nothing travels. Thread-safe.
class CommunicationLog {
 public:
  using Clock = std::chrono::steady_clock;

  struct Record {
    int64_t order = 0;  // 0, 1, ... over all communicators that share the log, since Clear
    Collective collective = Collective::kBarrier;
    std::string group;  // the communicator's name
    int group_size = 0;
    int peer = -1;      // of sends, receives and broadcasts
    int64_t bytes = 0;  // CollectiveRequest::bytes
    Clock::time_point issued;
    Clock::time_point finished;  // meaningful when `done`
    bool done = false;
  };

  struct Total {
    int64_t calls = 0;
    int64_t bytes = 0;
    bool operator==(const Total&) const = default;
  };

  // Names a record for Finish; survives Clear.
  struct Ticket {
    int64_t generation = 0;
    int64_t order = 0;
  };

  Ticket Add(Record record);
  // The operation's data is in place. Ignored if the record has been cleared.
  void Finish(const Ticket& ticket);

  void Clear();
  std::vector<Record> records() const;
  // By group name and operation name: the table of a step.
  std::map<std::pair<std::string, std::string>, Total> totals() const;

 private:
  mutable std::mutex mutex_;
  int64_t generation_ = 0;
  std::vector<Record> records_;
};

}  // namespace fathom
