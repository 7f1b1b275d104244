#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/top_k.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

// Keeps 0 / 0 out of the weights of a row whose chosen scores are all 0.
constexpr double kWeightFloor = 1e-20;

// body(i, thread) for the rows in use.
template <class Body>
void ForRows(CpuStream& stream, const Tensor& count, int64_t rows, double work_per_row,
             const Body& body) {
  cpu::ParallelFor(stream, cpu::RowsInUse(count, rows), work_per_row,
                   [&](int64_t begin, int64_t end, int thread) {
                     for (int64_t i = begin; i < end; ++i) body(i, thread);
                   });
}

int64_t ExpertOf(int32_t expert, int64_t experts) {
  FATHOM_CHECK(expert >= 0 && expert < experts) << "expert " << expert << " of " << experts;
  return expert;
}

template <class S>
S SumOfChosen(const S* scores, int64_t experts, const int32_t* chosen, int64_t routed) {
  S sum = static_cast<S>(kWeightFloor);
  for (int64_t j = 0; j < routed; ++j) sum += scores[ExpertOf(chosen[j], experts)];
  return sum;
}

template <class S>
void Sigmoids(const S* logits, int64_t n, S* scores) {
  for (int64_t j = 0; j < n; ++j) scores[j] = cpu::Sigmoid(logits[j]);
}

template <class S>
void Softmax(const S* logits, int64_t n, S* scores) {
  const S largest =
      cpu::LaneMax<S>(n, -std::numeric_limits<S>::infinity(), [&](int64_t j) { return logits[j]; });
  for (int64_t j = 0; j < n; ++j) scores[j] = cpu::Exp(logits[j] - largest);
  const S sum = cpu::LaneSum<S>(n, [&](int64_t j) { return scores[j]; });
  for (int64_t j = 0; j < n; ++j) scores[j] /= sum;
}

// ds becomes the gradient of the logits of a row. Weights and balance loss depend on the ratios of
// scores alone, so that sum_e ds_e score_e, which softmax's gradient takes off each ds, is 0.
template <class S>
void ThroughScoring(Scoring scoring, const S* scores, int64_t n, S* ds) {
  if (scoring == Scoring::kSoftmax) {
    for (int64_t j = 0; j < n; ++j) ds[j] *= scores[j];
  } else {
    for (int64_t j = 0; j < n; ++j) ds[j] *= scores[j] * (1 - scores[j]);
  }
}

// The balance loss of rows: what BalanceLoss and its gradient share.
template <class S>
class Balance {
 public:
  template <class Operation>
  explicit Balance(const Operation& op)
      : experts_(op.scores.dim(1)),
        first_row_(op.first_row),
        sequence_rows_(op.sequence_rows),
        begin_(op.balance_begin),
        end_(op.balance_end < 0 ? op.scores.dim(0) : op.balance_end),
        sequences_(op.sequence_counts.dim(0)),
        counts_(op.sequence_counts),
        factor_(static_cast<S>(static_cast<double>(experts_) / (op.routed * op.sequence_rows))) {
    FATHOM_CHECK(begin_ >= 0 && begin_ <= end_ && end_ <= op.scores.dim(0))
        << "rows " << begin_ << " to " << end_ << " of " << op.scores.dim(0);
    FATHOM_CHECK_EQ(op.sequence_counts.dim(1), experts_);
    FATHOM_CHECK(op.routed > 0 && op.sequence_rows > 0);
  }

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // sum_e f_e score_e / sum_e score_e.
  S Loss(int64_t row, const S* scores) const {
    const S sum = Sum(scores);
    return sum == 0 ? S(0) : Weighted(CountsOf(row), scores) / sum;
  }

  // ds += weight * the gradient of Loss by the scores.
  void AddGradient(int64_t row, const S* scores, S weight, S* ds) const {
    const S sum = Sum(scores);
    if (sum == 0) return;
    const S* counts = CountsOf(row);
    const S loss = Weighted(counts, scores) / sum;
    const S scale = weight / sum;
    for (int64_t e = 0; e < experts_; ++e) ds[e] += scale * (factor_ * counts[e] - loss);
  }

 private:
  const S* CountsOf(int64_t row) const {
    const int64_t sequence = (first_row_ + row) / sequence_rows_;
    FATHOM_CHECK(sequence < sequences_) << "sequence " << sequence << " of " << sequences_;
    return counts_[sequence];
  }
  S Sum(const S* scores) const {
    return cpu::LaneSum<S>(experts_, [&](int64_t e) { return scores[e]; });
  }
  S Weighted(const S* counts, const S* scores) const {
    return factor_ * cpu::LaneSum<S>(experts_, [&](int64_t e) { return counts[e] * scores[e]; });
  }

  int64_t experts_, first_row_, sequence_rows_, begin_, end_, sequences_;
  RowsOf<S> counts_;
  S factor_;  // f_e = factor * counts_e
};

template <class S>
void LogitGradient(const ExpertLogitGradient& op, CpuStream& stream) {
  const RowsOf<S> scores(op.scores), weights(op.weights), d_logits(op.d_logits);
  const RowsOf<S> d_weights(op.d_weights);
  const RowsOf<int32_t> chosen(op.experts);
  const int64_t experts = op.scores.dim(1), routed = op.experts.dim(1);
  const S balance_weight = static_cast<S>(op.balance_weight);
  // Without a balance term its operands may be absent.
  std::optional<Balance<S>> balance;
  if (balance_weight != 0) balance.emplace(op);
  ForRows(stream, op.count, op.scores.dim(0), 2.0 * experts, [&](int64_t i, int) {
    const S* s = scores[i];
    S* ds = d_logits[i];
    std::fill(ds, ds + experts, S(0));
    if (balance && i >= balance->begin() && i < balance->end()) {
      balance->AddGradient(i, s, balance_weight, ds);
    }
    if (!d_weights.absent()) {
      // w_j = s_j / sum, so ds_j = (dw_j - sum_k dw_k w_k) / sum.
      S mean = 0;
      for (int64_t j = 0; j < routed; ++j) mean += d_weights[i][j] * weights[i][j];
      const S sum = SumOfChosen(s, experts, chosen[i], routed);
      for (int64_t j = 0; j < routed; ++j) ds[chosen[i][j]] += (d_weights[i][j] - mean) / sum;
    }
    ThroughScoring(op.scoring, s, experts, ds);
  });
}

}  // namespace

void RunOnCpu(const ExpertScores& operation, CpuStream& stream) {
  const ExpertScores& op = operation;
  const int64_t experts = op.logits.dim(1);
  cpu::DispatchStatistics(op.scores.dtype(), [&](auto type) {
    using S = decltype(type);
    const RowsOf<S> logits(op.logits), scores(op.scores);
    ForRows(stream, op.count, op.logits.dim(0), 4.0 * experts, [&](int64_t i, int) {
      if (op.scoring == Scoring::kSoftmax) {
        Softmax(logits[i], experts, scores[i]);
      } else {
        Sigmoids(logits[i], experts, scores[i]);
      }
    });
  });
}

void RunOnCpu(const SelectExperts& operation, CpuStream& stream) {
  const SelectExperts& op = operation;
  const int64_t experts = op.scores.dim(1), routed = op.experts.dim(1);
  FATHOM_CHECK(routed >= 1 && routed <= experts) << routed << " of " << experts << " experts";
  cpu::DispatchStatistics(op.scores.dtype(), [&](auto type) {
    using S = decltype(type);
    using Key = cpu::OrderKey<S>;
    const RowsOf<S> scores(op.scores);
    const S* bias = cpu::DataOf<S>(op.bias);
    const RowsOf<int32_t> chosen(op.experts);
    ForRows(stream, op.count, op.scores.dim(0), 8.0 * experts, [&](int64_t i, int thread) {
      Key* keys = static_cast<Key*>(stream.Scratch(thread, experts * sizeof(Key)));
      const S* row = scores[i];
      const auto value = [&](int64_t e) { return bias ? row[e] + bias[e] : row[e]; };
      cpu::TopK<S>(experts, routed, value, keys, 0, chosen[i]);
    });
  });
}

void RunOnCpu(const ExpertWeights& operation, CpuStream& stream) {
  const ExpertWeights& op = operation;
  const int64_t experts = op.scores.dim(1), routed = op.experts.dim(1);
  cpu::DispatchStatistics(op.scores.dtype(), [&](auto type) {
    using S = decltype(type);
    const RowsOf<S> scores(op.scores), weights(op.weights);
    const RowsOf<int32_t> chosen(op.experts);
    ForRows(stream, op.count, op.scores.dim(0), 2.0 * routed, [&](int64_t i, int) {
      const S sum = SumOfChosen(scores[i], experts, chosen[i], routed);
      for (int64_t j = 0; j < routed; ++j) weights[i][j] = scores[i][chosen[i][j]] / sum;
    });
  });
}

void RunOnCpu(const CountExperts& operation, CpuStream&) {
  const CountExperts& op = operation;
  const int64_t rows = cpu::RowsInUse(op.count, op.experts.dim(0)), routed = op.experts.dim(1);
  const int64_t experts = op.counts.elements();
  const RowsOf<int32_t> chosen(op.experts);
  int32_t* counts = op.counts.data<int32_t>();
  std::fill(counts, counts + experts, 0);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < routed; ++j) ++counts[ExpertOf(chosen[i][j], experts)];
  }
  if (!op.total.absent()) {
    cpu::DispatchStatistics(op.total.dtype(), [&](auto type) {
      auto* total = op.total.data<decltype(type)>();
      for (int64_t e = 0; e < experts; ++e) total[e] += counts[e];
    });
  }
  if (op.sequence_counts.absent()) return;
  FATHOM_CHECK(op.sequence_rows > 0);
  cpu::DispatchStatistics(op.sequence_counts.dtype(), [&](auto type) {
    using S = decltype(type);
    const RowsOf<S> of_sequence(op.sequence_counts);
    const int64_t sequences = op.sequence_counts.dim(0);
    for (int64_t b = 0; b < sequences; ++b) std::fill_n(of_sequence[b], experts, S(0));
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t sequence = (op.first_row + i) / op.sequence_rows;
      FATHOM_CHECK(sequence < sequences) << "sequence " << sequence << " of " << sequences;
      for (int64_t j = 0; j < routed; ++j) of_sequence[sequence][chosen[i][j]] += 1;
    }
  });
}

void RunOnCpu(const BalanceLoss& operation, CpuStream& stream) {
  const BalanceLoss& op = operation;
  cpu::DispatchStatistics(op.scores.dtype(), [&](auto type) {
    using S = decltype(type);
    const RowsOf<S> scores(op.scores);
    const Balance<S> balance(op);
    const double* sum = cpu::ReduceRows(
        stream, balance.end() - balance.begin(), 1, 2.0 * op.scores.dim(1),
        [&](int64_t begin, int64_t end, double* partial) {
          for (int64_t i = balance.begin() + begin; i < balance.begin() + end; ++i) {
            *partial += balance.Loss(i, scores[i]);
          }
        });
    *op.loss.data<double>() += op.weight * *sum;
  });
}

void RunOnCpu(const ExpertLogitGradient& operation, CpuStream& stream) {
  cpu::DispatchStatistics(operation.scores.dtype(),
                          [&](auto type) { LogitGradient<decltype(type)>(operation, stream); });
}

void RunOnCpu(const ExpertLoad& operation, CpuStream&) {
  const int64_t experts = operation.counts.elements();
  double* violation = operation.violation.data<double>();
  double* entropy = operation.entropy.data<double>();
  cpu::DispatchStatistics(operation.counts.dtype(), [&](auto type) {
    const auto* counts = operation.counts.data<decltype(type)>();
    double sum = 0, largest = 0, nats = 0;
    for (int64_t e = 0; e < experts; ++e) {
      sum += counts[e];
      largest = std::max<double>(largest, counts[e]);
    }
    for (int64_t e = 0; e < experts; ++e) {
      if (counts[e] > 0) nats -= counts[e] / sum * std::log(counts[e] / sum);
    }
    *violation = sum > 0 ? largest * experts / sum - 1 : 0;
    *entropy = sum > 0 && experts > 1 ? nats / std::log(static_cast<double>(experts)) : 1;
  });
}

}  // namespace fathom
