#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/model/parameters.h"
#include "runtime/optimizer/muon.h"

namespace fathom {

// How an optimizer shares its work with the ranks that hold copies of a parameter: the data ranks,
// or for experts their replicas.
struct OptimizerSharing {
  // Each of them keeps the state of what it owns alone (ZeRO stage 1, Rajbhandari et al., 2020):
  // of every Muon matrix one, of AdamW's parameters ranges of equal size. Else all keep all of it.
  // Either way each matrix is orthogonalised once.
  bool shard_state = false;
};

// Clips gradients by their global norm and updates all parameters: Muon for the hidden matrices
// (unless the job gives them to AdamW too), AdamW for the rest, and the biases of experts by how
// often each was selected. Masters are updated and weights rounded from them. Owns momenta and
// moments, in StatisticsDType of the weights.
class Optimizer {
 public:
  // `table` has its memory, with gradients; it and `groups` outlive the optimizer. Momenta start
  // at 0.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const OptimizerConfig& config,
                                                           const OptimizerSharing& sharing,
                                                           const ParameterTable& table,
                                                           RankGroups& groups, Device& device,
                                                           Stream& stream);

  // One update from the table's gradients, which have been summed over the ranks and are used up.
  // totals [k + 1] float64: first k numbers of this rank, such as its share of the loss, which
  // become their sums over all ranks; the last one becomes the squared norm of all gradients. When
  // one of them is not finite, everything else stays as it was. Scratch comes from `arena`. Called
  // by all ranks; errors are those of the communicators.
  absl::Status Step(Stream& stream, Arena& arena, double learning_rate, const Tensor& totals);

  // [kStepScalars] float64 in device memory: what the last step did (see kernels/optimizer.h).
  const Tensor& step() const { return step_; }

  // The state that this rank keeps, by the names that checkpoints have: NAME.momentum, or
  // NAME.first and NAME.second. `range`: of the elements of this rank's part of the parameter.
  struct StateTensor {
    std::string name;
    const Parameter* parameter;
    ElementRange range;
    Tensor tensor;  // [range]
  };
  const std::vector<StateTensor>& state() const { return state_; }
  const ParameterTable& parameters() const { return table_; }
  int64_t bytes() const { return state_buffer_.bytes() + scalars_.bytes(); }
  // Matrices that this rank has orthogonalised so far.
  int64_t orthogonalized() const;

 private:
  Optimizer(const OptimizerConfig& config, const OptimizerSharing& sharing,
            const ParameterTable& table, RankGroups& groups);

  // Elements of one parameter that this rank updates by AdamW.
  struct AdamPiece {
    const Parameter* parameter;
    ElementRange elements;  // of the common buffers
    Tensor first, second;
  };

  bool UsesMuon(const Parameter& parameter) const;
  // sum [1] float64 += the squares of the gradients that this rank answers for: over all ranks each
  // element of the model once.
  void AddSquaredNorm(Stream& stream, const Tensor& sum) const;
  // The elements of a bucket whose state this rank keeps.
  ElementRange Kept(const ParameterBucket& bucket) const;
  // Calls visit(parameter, elements of the common buffers) for all that this rank keeps state of.
  template <class Visit>
  void VisitKept(Visit visit) const;
  // Sends what this rank owns in `all` of Muon's buckets, or of all others, to the other copies.
  absl::Status Share(bool matrices, const Tensor& all, Stream& stream);
  // The hidden matrices of experts, or all others.
  std::unique_ptr<Muon> MakeMuon(bool of_expert,
                                 const std::map<const Parameter*, Tensor>& momenta) const;
  void UpdateExpertBiases(Stream& stream) const;

  OptimizerConfig config_;
  OptimizerSharing sharing_;
  const ParameterTable& table_;
  RankGroups& groups_;
  Buffer state_buffer_;
  Buffer scalars_;
  std::vector<StateTensor> state_;
  std::vector<AdamPiece> adam_;
  std::unique_ptr<Muon> muon_, expert_muon_;
  Tensor step_;               // [kStepScalars] float64
  double learning_rate_ = 0;  // the source of an asynchronous copy
};

}  // namespace fathom
