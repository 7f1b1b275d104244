#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace fathom {

// Cooperative lanes on one thread: a function runs several times side by side, each time on a stack
// of its own, and only one of them at any moment. A lane runs until it yields or returns; then the
// next one does, in a fixed round robin, whatever the timing: 0, 1, ..., 0, 1, ... without those
// that have returned. So ranks that run the same code yield, and issue collectives, in the same
// order.
//
// Whoever yields holds a pointer to the Lanes; the functions between it and Run need not know. All
// lanes run on the thread that called Run, so thread-local variables and locks are shared between
// them: a lane must not yield while it holds a lock.
//
// One thread at a time uses an object; every rank has its own.
class Lanes {
 public:
  // The size of a lane's stack, where there is more than one lane. Memory that a lane never touches
  // is never committed; one that needs more ends the process, at a page that cannot be written.
  static constexpr int64_t kStackBytes = int64_t{1} << 20;

  Lanes();
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Calls body(lane) for the lanes 0 to `lanes` - 1 and returns when all have returned. Stacks are
  // kept for later runs. One lane is a plain call on the caller's stack. Not to be called from
  // inside a run of the same object. An exception that leaves `body` ends the process.
  void Run(int lanes, const std::function<void(int lane)>& body) noexcept;

  // Lets the other lanes run until it is this one's turn again. Called from inside a lane, however
  // deep. Does nothing with one lane, and outside of a run.
  void Yield();

  // The lane that runs; 0 outside of a run.
  int current() const { return current_; }

 private:
  class Lane;

  void TakeTurns(int lanes, const std::function<void(int lane)>& body);

  std::vector<std::unique_ptr<Lane>> lanes_;  // as many as the largest run had, if more than one
  bool running_ = false;
  bool switching_ = false;  // a run of more than one lane
  int current_ = 0;
  std::thread::id thread_;  // that of the run
};

}  // namespace fathom
