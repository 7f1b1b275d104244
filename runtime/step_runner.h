#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job.h"
#include "parallel/pipeline/operation.h"
#include "parallel/rank_groups.h"
#include "runtime/language_model.h"

namespace fathom {

// What others want to know of a step's passes; each may be empty.
struct PassHooks {
  // Around the layers of this rank's micro-batch number `micro_batch`, once for each chunk.
  std::function<void(int64_t micro_batch, Pass&)> before_forward;
  std::function<void(int64_t micro_batch, const HostBatch&, const Pass&)> after_forward;
  // All gradients of this step from this place of the parameter table on are complete.
  std::function<void(size_t first_parameter)> gradients_done;
};

// The numbers of a step on the device, [kStepTotals] float64; see Optimizer::Step.
enum StepTotal {
  kLossTotal,           // cross-entropy
  kAuxiliaryLossTotal,  // after its coefficient
  kStopTotal,           // above 0: a rank wants the run to stop
  kSquaredNormTotal,
  kStepTotals,
};

// Runs micro-batches through what this rank has of a model: forward and backward by a pipeline
// schedule, several of them side by side in lanes.
class StepRunner {
 public:
  struct Options {
    PipelineSchedule schedule = PipelineSchedule::k1F1B;
    int64_t micro_batches = 1;  // of this rank in a step; a multiple of `lanes`
    int lanes = 1;
    double auxiliary_weight = 0;  // of a token in the routing loss
    double balance_weight = 0;    // of a sequence in the balance loss
  };

  // Model and groups outlive the runner. InvalidArgument for a schedule that does not exist.
  static absl::StatusOr<std::unique_ptr<StepRunner>> Create(const Options& options,
                                                            LanguageModel& model,
                                                            RankGroups& groups);

  // Adds the gradients of a step's micro-batches, which stay as they are until the stream is
  // synchronized, to those of the parameters, and this rank's share of the losses to `totals`.
  // `label_weight`: 1 / (labels of the global batch that count). Called by all ranks; errors are
  // those of the communicators.
  absl::Status Train(const std::vector<HostBatch>& micro_batches, double label_weight,
                     const Tensor& totals, const PassHooks& hooks);

  // What evaluation counts, of this rank's layers.
  struct RowCounts {
    std::vector<int64_t> layer_rows;  // [layers]: rows that each saw
    // [layers * E]: rows of each expert, which tensor ranks have parts of; empty without experts.
    std::vector<double> expert_rows;
  };
  // All 0.
  RowCounts NoRows() const;

  // Runs one batch forward without keeping anything. `losses`: of each row, on the ranks of the
  // pipeline's last part; left empty on the others. `counts`: +=. Called by all ranks of a data
  // coordinate, and with experts by all ranks of a stage.
  absl::Status Evaluate(const HostBatch& host, Routing routing, std::vector<double>* losses,
                        RowCounts* counts);

  LanguageModel& model() { return model_; }
  RankGroups& groups() { return groups_; }

 private:
  // One micro-batch between the start of its forward and the end of its backward, in one chunk.
  struct InFlight {
    size_t arena;
    Arena::Mark start;
    const HostBatch* host;
    int64_t micro_batch;
    MicroBatch batch;
    std::optional<Pass> pass;
    std::vector<Completion> receiving;
    std::vector<Completion> sending;
  };
  // The micro-batches of a schedule's micro-batch, one for each lane, in one chunk.
  using Group = std::vector<std::unique_ptr<InFlight>>;
  struct Step;  // what Train was called with

  StepRunner(const Options& options, LanguageModel& model, RankGroups& groups);

  absl::Status Execute(const PipelineOperation& operation, const Step& step);
  // Makes the passes of a group, with memory for what is received.
  absl::Status Begin(const PipelineOperation& operation, const Step& step);
  absl::Status Forward(const PipelineOperation& operation, const Step& step);
  void ForwardLane(const Step& step, Stage& stage, InFlight& work);
  // Runs body(lane) in all lanes; on a timeline each has a track, with one span of that name.
  void RunLanes(const std::string& name, const std::function<void(int lane)>& body);
  absl::Status Backward(const PipelineOperation& operation, const Step& step);
  absl::Status SendActivations(const PipelineOperation& operation);
  absl::Status ReceiveGradients(const PipelineOperation& operation);
  absl::Status SendGradients(const PipelineOperation& operation);
  // Waits for the gradients that have been sent and gives their memory back.
  absl::Status ReleaseSent();
  void Release(InFlight& work);
  static absl::Status Wait(std::vector<Completion>& completions, Stream& stream);

  Group& GroupOf(const PipelineOperation& operation);
  size_t TakeArena();
  // What goes from one part to the next: the residual and, inside an interval, the counts.
  std::vector<Tensor> Activations(const Pass& pass, bool with_counts) const;
  bool NextNeedsCounts(const Stage& stage) const;

  Options options_;
  LanguageModel& model_;
  RankGroups& groups_;
  PipelineList list_;  // of this rank's stage; a micro-batch of it is one of every lane
  std::map<std::pair<int, int>, Group> in_flight_;  // by chunk and the schedule's micro-batch
  std::vector<Group> sent_;                         // whose gradients are on their way
  std::set<size_t> free_arenas_;
  size_t arenas_ = 0;
};

}  // namespace fathom
