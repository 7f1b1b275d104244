#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/check.h"

namespace fathom {

// A stream of pieces of work that several threads share, with results in the order of the input:
// one thread at a time reads, all of them work, one at a time writes. What is in flight is bounded
// by a few pieces per thread.
template <class In, class Out>
class OrderedWork {
 public:
  struct Steps {
    std::function<absl::StatusOr<bool>(In*)> read;               // false: there is no more
    std::function<absl::StatusOr<Out>(int thread, In in)> work;  // 0 <= thread < threads
    std::function<absl::Status(Out)> write;
  };
  explicit OrderedWork(Steps steps) : steps_(std::move(steps)) {}

  // On `threads` threads, the caller's one of them. The first error in the order of the input is
  // returned, whatever the number of threads; everything before it has been written, and nothing
  // behind it. Call once.
  absl::Status Run(int threads) {
    FATHOM_CHECK(threads >= 1);
    window_ = 2 * threads + 1;
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) {
      others.emplace_back([this, thread] { Loop(thread); });
    }
    Loop(0);
    for (std::thread& other : others) other.join();
    return status_;
  }

 private:
  void Loop(int thread) {
    int64_t index;
    In in;
    absl::Status read_error;
    while (Read(&index, &in, &read_error)) {
      if (!read_error.ok()) return Deliver(index, read_error);
      Deliver(index, steps_.work(thread, std::move(in)));
      in = In();
    }
  }

  // False when there is nothing to do any more.
  bool Read(int64_t* index, In* in, absl::Status* error) {
    std::lock_guard reading(read_mutex_);
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopped_ || next_read_ - next_write_ < window_; });
      if (stopped_ || ended_) return false;
    }
    const absl::StatusOr<bool> more = steps_.read(in);
    std::lock_guard lock(mutex_);
    ended_ = !more.ok() || !*more;
    if (more.ok() && !*more) return false;
    *error = more.status();
    *index = next_read_++;
    return true;
  }

  // Writes the result and those that wait behind it, unless an earlier one is still missing or
  // another thread writes: then that thread goes on with this one.
  void Deliver(int64_t index, absl::StatusOr<Out> result) {
    std::unique_lock lock(mutex_);
    ready_.emplace(index, std::move(result));
    if (writing_) return;
    writing_ = true;
    while (!stopped_ && !ready_.empty() && ready_.begin()->first == next_write_) {
      absl::StatusOr<Out> next = std::move(ready_.begin()->second);
      ready_.erase(ready_.begin());
      lock.unlock();
      const absl::Status status =
          next.ok() ? steps_.write(*std::move(next)) : std::move(next).status();
      lock.lock();
      ++next_write_;
      if (!status.ok()) {
        status_ = status;
        stopped_ = true;
      }
      changed_.notify_all();
    }
    writing_ = false;
  }

  const Steps steps_;
  int64_t window_ = 0;
  std::mutex read_mutex_;  // held while reading
  std::mutex mutex_;       // guards what follows
  std::condition_variable changed_;
  std::map<int64_t, absl::StatusOr<Out>> ready_;
  int64_t next_read_ = 0;
  int64_t next_write_ = 0;
  bool ended_ = false;    // nothing more to read
  bool stopped_ = false;  // by an error
  bool writing_ = false;
  absl::Status status_;
};

}  // namespace fathom
