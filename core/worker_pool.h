#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace fathom {

// Threads that run one function together, over and over. Between two runs they spin for some
// microseconds and then sleep, so that ranks and programs that share cores do not starve each
// other. Run is called by one thread at a time, and not from inside a run.
class WorkerPool {
 public:
  // The caller of Run is thread 0; `threads` - 1 others are started.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(thread) on threads 0 to `threads` - 1 (at most threads()) at once; returns when all have.
  template <class Body>
  void Run(int threads, const Body& body) {
    RunErased(threads, &Call<Body>, &body);
  }

 private:
  using Function = void (*)(const void* body, int thread);

  template <class Body>
  static void Call(const void* body, int thread) {
    (*static_cast<const Body*>(body))(thread);
  }
  void RunErased(int threads, Function function, const void* body);
  void Work(int thread);

  // The number of the run, and in the low bits how many threads take part; a change starts them.
  std::atomic<uint32_t> run_{0};
  std::atomic<int32_t> unfinished_{0};  // workers that are still in this run
  Function function_ = nullptr;
  const void* body_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace fathom
