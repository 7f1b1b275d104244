#include "parallel/in_process_communicator.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/random.h"
#include "core/status.h"
#include "parallel/in_process_group.h"

namespace fathom {
namespace {

using Clock = InProcessGroup::Clock;

// What all ranks share: the groups, the first cause of an abort, and, where transfers take time, a
// thread that ends them.
class World {
 public:
  explicit World(const InProcessOptions& options) : options_(options) {
    if (delays()) timer_ = std::thread([this] { RunTimer(); });
  }

  ~World() {
    if (!timer_.joinable()) return;
    {
      const std::lock_guard<std::mutex> lock(timer_mutex_);
      stopping_ = true;
    }
    timer_changed_.notify_all();
    timer_.join();
  }

  // The group named by (parent's id, how many splits the parent has had, color), made on first use.
  using GroupKey = std::tuple<int64_t, int64_t, int>;
  std::pair<std::shared_ptr<InProcessGroup>, int64_t> Group(const GroupKey& key, int size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [group, id] = groups_[key];
    if (group == nullptr) {
      id = static_cast<int64_t>(groups_.size());
      group = std::make_shared<InProcessGroup>(size, options_.chunk_elements, DelayOf(id));
      if (!cause_.ok()) group->Cancel(cause_);
    }
    return {group, id};
  }

  void Abort(const std::string& rank_label, const absl::Status& cause) {
    std::vector<std::shared_ptr<InProcessGroup>> groups;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!cause_.ok()) return;
      std::ostringstream text;
      text << rank_label << ": " << cause;
      std::cerr << text.str() << std::endl;
      cause_ = absl::AbortedError(absl::StrCat("the job was ended by ", text.str()));
      for (const auto& [key, group] : groups_) groups.push_back(group.first);
    }
    for (const std::shared_ptr<InProcessGroup>& group : groups) group->Cancel(cause_);
  }

  // Has `group` pumped at `time`.
  void PumpAt(Clock::time_point time, const std::shared_ptr<InProcessGroup>& group) {
    if (time == Clock::time_point::max()) return;
    {
      const std::lock_guard<std::mutex> lock(timer_mutex_);
      timers_.emplace(time, group);
    }
    timer_changed_.notify_all();
  }

 private:
  bool delays() const {
    return options_.latency.count() > 0 || options_.random_latency.count() > 0 ||
           options_.bytes_per_second > 0;
  }

  InProcessGroup::Delay DelayOf(int64_t group_id) const {
    if (!delays()) return nullptr;
    return [options = options_, group_id, count = uint64_t{0}](int64_t bytes) mutable {
      double nanoseconds = static_cast<double>(options.latency.count());
      if (options.bytes_per_second > 0) nanoseconds += 1e9 * bytes / options.bytes_per_second;
      const std::array<uint32_t, 4> draw =
          Philox4x32({static_cast<uint32_t>(count++), static_cast<uint32_t>(group_id), 0, 0},
                     {static_cast<uint32_t>(options.seed), 0});
      nanoseconds += static_cast<double>(options.random_latency.count()) * draw[0] / 4294967296.0;
      return std::chrono::nanoseconds(static_cast<int64_t>(nanoseconds));
    };
  }

  void RunTimer() {
    std::unique_lock<std::mutex> lock(timer_mutex_);
    while (!stopping_) {
      if (timers_.empty()) {
        timer_changed_.wait(lock);
        continue;
      }
      const auto first = timers_.begin();
      if (first->first > Clock::now()) {
        timer_changed_.wait_until(lock, Clock::time_point(first->first));
        continue;
      }
      const std::shared_ptr<InProcessGroup> group = first->second;
      timers_.erase(first);
      lock.unlock();
      PumpAt(group->Pump(Clock::now()), group);
      lock.lock();
    }
  }

  const InProcessOptions options_;

  std::mutex mutex_;
  absl::Status cause_;
  std::map<GroupKey, std::pair<std::shared_ptr<InProcessGroup>, int64_t>> groups_;

  std::mutex timer_mutex_;
  std::condition_variable timer_changed_;
  bool stopping_ = false;
  std::set<std::pair<Clock::time_point, std::shared_ptr<InProcessGroup>>> timers_;
  std::thread timer_;
};

class InProcessCommunicator final : public Communicator {
 public:
  InProcessCommunicator(int rank, int size, const std::string& name,
                        const CommunicatorOptions& options, std::shared_ptr<World> world,
                        const World::GroupKey& key)
      : Communicator(rank, size, name, options), world_(std::move(world)) {
    std::tie(group_, id_) = world_->Group(key, size);
  }

  void Abort(const absl::Status& cause) override { world_->Abort(rank_label(), cause); }

 protected:
  void Start(CollectiveRequest request, std::shared_ptr<PendingOperation> pending) override {
    const Clock::time_point next = group_->Enqueue(rank(), std::move(request), std::move(pending));
    world_->PumpAt(next, group_);
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(int color, int key,
                                                          const std::string& name) override {
    const int64_t split = splits_++;
    std::vector<int32_t> own = {color, key};
    std::vector<int32_t> all(2 * size());
    FATHOM_RETURN_IF_ERROR(
        StartUnrecorded({.collective = Collective::kAllGather,
                         .input = Tensor(own.data(), DType::kInt32, {2}),
                         .output = Tensor(all.data(), DType::kInt32, {2 * size()}),
                         .counts = std::vector<int64_t>(size(), 2)})
            .Wait());
    if (color < 0) return std::unique_ptr<Communicator>();
    std::vector<std::pair<int, int>> members;  // (key, rank here)
    for (int r = 0; r < size(); ++r) {
      if (all[2 * r] == color) members.emplace_back(all[2 * r + 1], r);
    }
    std::sort(members.begin(), members.end());
    const auto self = std::find(members.begin(), members.end(), std::pair(key, rank()));
    return std::make_unique<InProcessCommunicator>(
        static_cast<int>(self - members.begin()), static_cast<int>(members.size()), name, options(),
        world_, World::GroupKey(id_, split, color));
  }

 private:
  const std::shared_ptr<World> world_;
  std::shared_ptr<InProcessGroup> group_;
  int64_t id_ = 0;
  int64_t splits_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> NewInProcessWorld(int ranks,
                                                             const InProcessOptions& options) {
  auto world = std::make_shared<World>(options);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < ranks; ++rank) {
    members.push_back(std::make_unique<InProcessCommunicator>(rank, ranks, "world", options, world,
                                                              World::GroupKey(0, 0, 0)));
  }
  return members;
}

}  // namespace fathom
