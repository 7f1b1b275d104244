#include "core/lane.h"

#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <utility>

#include "core/check.h"

#if defined(__has_feature)
#define FATHOM_HAS_FEATURE(feature) __has_feature(feature)
#else
#define FATHOM_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || FATHOM_HAS_FEATURE(address_sanitizer)
#define FATHOM_ADDRESS_SANITIZER 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || FATHOM_HAS_FEATURE(thread_sanitizer)
#define FATHOM_THREAD_SANITIZER 1
#include <sanitizer/tsan_interface.h>
#endif

namespace fathom {
namespace {

namespace context = boost::context;

// Tells the address sanitizer which stack is in use; without it, nothing. Around a switch, the side
// that leaves calls Leave..., the side that is reached calls Reached....
class StackNotes {
 public:
#ifdef FATHOM_ADDRESS_SANITIZER
  explicit StackNotes(const context::stack_context& stack)
      : bottom_(static_cast<char*>(stack.sp) - stack.size), bytes_(stack.size) {}

  void LeaveRun() { __sanitizer_start_switch_fiber(&run_frames_, bottom_, bytes_); }
  void ReachedRun() { __sanitizer_finish_switch_fiber(run_frames_, nullptr, nullptr); }
  void LeaveLane() { __sanitizer_start_switch_fiber(&lane_frames_, run_bottom_, run_bytes_); }
  void LeaveLaneForGood() { __sanitizer_start_switch_fiber(nullptr, run_bottom_, run_bytes_); }
  void ReachedLane() {
    __sanitizer_finish_switch_fiber(lane_frames_, &run_bottom_, &run_bytes_);
    lane_frames_ = nullptr;
  }
  // The last frames of a lane never return, so what they poisoned stays so.
  void ClearStack() { __asan_unpoison_memory_region(bottom_, bytes_); }

 private:
  const void* bottom_;
  size_t bytes_;
  const void* run_bottom_ = nullptr;
  size_t run_bytes_ = 0;
  void* run_frames_ = nullptr;
  void* lane_frames_ = nullptr;  // null when the lane starts
#else
  explicit StackNotes(const context::stack_context&) {}
  void LeaveRun() {}
  void ReachedRun() {}
  void LeaveLane() {}
  void LeaveLaneForGood() {}
  void ReachedLane() {}
  void ClearStack() {}
#endif
};

// Tells the thread sanitizer, which follows calls and returns of each fiber, when a lane runs;
// without it, nothing. Both calls are made on Run's side of a switch, so that each lane sees as
// many calls as returns.
class CallNotes {
 public:
#ifdef FATHOM_THREAD_SANITIZER
  CallNotes() : lane_(__tsan_create_fiber(0)) {}
  ~CallNotes() { __tsan_destroy_fiber(lane_); }
  void EnterLane() {
    run_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(lane_, 0);
  }
  void LeaveLane() { __tsan_switch_to_fiber(run_, 0); }

 private:
  void* lane_;
  void* run_ = nullptr;
#else
  void EnterLane() {}
  void LeaveLane() {}
#endif
};

// The owner of a stack frees it, not the fiber that ran on it.
struct KeepStack {
  void deallocate(context::stack_context&) {}
};

}  // namespace

// A stack, and the function that runs on it in the present run.
class Lanes::Lane {
 public:
  Lane() : stack_(allocator_.allocate()), stack_notes_(stack_) {}
  ~Lane() { allocator_.deallocate(stack_); }

  // `body` starts with the first Resume.
  void Start(int lane, const std::function<void(int lane)>& body) {
    call_notes_.EnterLane();
    inside_ =
        context::fiber(std::allocator_arg, context::preallocated(stack_.sp, stack_.size, stack_),
                       KeepStack(), [this, lane, &body](context::fiber&& outside) {
                         outside_ = std::move(outside);
                         stack_notes_.ReachedLane();
                         body(lane);
                         stack_notes_.LeaveLaneForGood();
                         return std::move(outside_);
                       });
    call_notes_.LeaveLane();
  }

  bool finished() const { return !inside_; }

  // On the side of Run: returns when the lane has yielded or finished.
  void Resume() {
    call_notes_.EnterLane();
    stack_notes_.LeaveRun();
    inside_ = std::move(inside_).resume();
    stack_notes_.ReachedRun();
    call_notes_.LeaveLane();
    if (finished()) stack_notes_.ClearStack();
  }

  // On the side of the lane: returns when it is resumed.
  void Yield() {
    stack_notes_.LeaveLane();
    outside_ = std::move(outside_).resume();
    stack_notes_.ReachedLane();
  }

 private:
  context::protected_fixedsize_stack allocator_{kStackBytes};
  context::stack_context stack_;
  StackNotes stack_notes_;
  CallNotes call_notes_;
  context::fiber inside_;   // where the lane goes on; empty while it runs and when it has finished
  context::fiber outside_;  // where Run goes on; empty unless the lane runs
};

Lanes::Lanes() = default;

Lanes::~Lanes() { FATHOM_CHECK(!running_) << "lanes are destroyed while they run"; }

void Lanes::Run(int lanes, const std::function<void(int lane)>& body) noexcept {
  FATHOM_CHECK(lanes >= 1) << lanes << " lanes";
  FATHOM_CHECK(!running_) << "Run is called inside of a run";
  running_ = true;
  thread_ = std::this_thread::get_id();
  if (lanes == 1) {
    body(0);
  } else {
    TakeTurns(lanes, body);
  }
  running_ = false;
}

void Lanes::TakeTurns(int lanes, const std::function<void(int lane)>& body) {
  while (static_cast<int>(lanes_.size()) < lanes) lanes_.push_back(std::make_unique<Lane>());
  for (int lane = 0; lane < lanes; ++lane) lanes_[lane]->Start(lane, body);
  switching_ = true;
  int unfinished = lanes;
  while (unfinished > 0) {
    for (current_ = 0; current_ < lanes; ++current_) {
      Lane& lane = *lanes_[current_];
      if (lane.finished()) continue;
      lane.Resume();
      if (lane.finished()) --unfinished;
    }
  }
  switching_ = false;
  current_ = 0;
}

void Lanes::Yield() {
  if (!switching_) return;
  FATHOM_CHECK(std::this_thread::get_id() == thread_) << "a thread that runs no lane yields";
  lanes_[current_]->Yield();
}

}  // namespace fathom
