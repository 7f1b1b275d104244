#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/file.h"
#include "core/job.h"
#include "core/timeline.h"
#include "parallel/rank_groups.h"

namespace fathom {

// What a job's debug.timeline_step asks for: when each operation of one step ran, by lane, and when
// each collective of each group was under way. Every rank writes its own file,
// OUTPUT/timeline_NNNNNNNN_rank_RRRR.json. Calls, by all ranks: BeginStep, the step, EndStep. Does
// nothing in other steps.
class StepTimeline {
 public:
  // All outlive the object.
  StepTimeline(const Job& job, FileSystem& files, std::function<void(const std::string&)> log,
               RankGroups& groups, Stream& stream);

  void BeginStep(int64_t step);
  absl::Status EndStep(int64_t step);

 private:
  const Job& job_;
  FileSystem& files_;
  std::function<void(const std::string&)> log_;
  RankGroups& groups_;
  Stream& stream_;
  std::unique_ptr<Timeline> timeline_;  // of the running step, when it is the one
  std::shared_ptr<CommunicationLog> communication_;
};

}  // namespace fathom
