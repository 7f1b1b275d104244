#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/file.h"
#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/data/batch_share.h"
#include "runtime/dump.h"
#include "runtime/selection_replay.h"

namespace fathom {

// What a job's `debug` asks of every training step, called by all ranks in this order: BeginStep;
// for each pass of a micro-batch through layers of this rank BeforeForward and AfterForward; all
// backward passes and the sums over the ranks; AfterBackward, the update, EndStep. A job without
// debug fields makes them all do nothing.
class StepDebug {
 public:
  // Reads debug.selection_file and checks debug.dump_dir. `first_step`: the first to be run.
  // Parameters, optimizer and stream are those of the run and outlive the object.
  static absl::StatusOr<std::unique_ptr<StepDebug>> Create(
      const Job& job, FileSystem& files, std::function<void(const std::string&)> log,
      int64_t first_step, const ParameterTable& parameters, const Optimizer& optimizer,
      const BatchShare& share, RankGroups& groups, Stream& stream);

  absl::Status BeginStep(int64_t step);
  // `micro_batch`: of this rank in the step, from 0.
  void BeforeForward(int64_t micro_batch, Pass& pass);
  void AfterForward(int64_t micro_batch, const HostBatch& host, const Pass& pass);
  absl::Status AfterBackward();
  // `record`: the step's metrics, one JSON object.
  absl::Status EndStep(const std::string& record);

 private:
  StepDebug(const Job& job, FileSystem& files, std::function<void(const std::string&)> log,
            const ParameterTable& parameters, const Optimizer& optimizer, const BatchShare& share,
            RankGroups& groups, Stream& stream);
  // Flips of all ranks together, on every rank.
  absl::Status SumFlips(SelectionReplay::Flips* flips);

  const Job& job_;
  FileSystem& files_;
  std::function<void(const std::string&)> log_;
  const ParameterTable& parameters_;
  const Optimizer& optimizer_;
  BatchShare share_;
  RankGroups& groups_;
  Stream& stream_;
  std::string dump_directory_;

  int64_t step_ = 0;     // running
  absl::Status status_;  // of the step's AfterForward calls: the first error
  std::optional<StepDump> dump_;
  std::unique_ptr<SelectionReplay> replay_;  // nullptr: the model selects
  SelectionReplay::Flips flips_;             // of the running step
  SelectionReplay::Flips expert_flips_;
};

}  // namespace fathom
