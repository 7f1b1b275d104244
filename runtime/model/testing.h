#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cpu_device.h"
#include "core/random.h"
#include "kernels/elementwise.h"
#include "runtime/model/stage.h"

namespace fathom::testing {

// A small model on the CPU, for tests: weights and results as doubles on the host.
class TestModel {
 public:
  TestModel(const ModelConfig& config, DType dtype, int64_t length, int threads = 2)
      : device_(threads),
        stream_(device_.NewStream()),
        arena_(device_, int64_t{4} << 20),
        stage_(config, {0, static_cast<int64_t>(config.plan.layers.size())}, tensor_, experts_,
               table_) {
    FATHOM_CHECK(table_.Allocate(device_, dtype, /*with_gradients=*/true).ok());
    FATHOM_CHECK(stage_.Prepare(device_, *stream_, dtype, length).ok());
    Randomize(1);
  }

  // Weights wide enough that every path of the model matters; norms and scales around 1.
  void Randomize(uint64_t seed) {
    for (const Parameter& parameter : table_.all()) {
      const bool around_one = parameter.spec.role == ParameterRole::kNorm ||
                              parameter.spec.role == ParameterRole::kScale;
      // Below the differences of scores, so that rows differ in the experts that they choose.
      const double deviation = parameter.spec.role == ParameterRole::kExpertBias ? 0.02 : 0.3;
      std::vector<double> values(parameter.weight.elements());
      for (size_t i = 0; i < values.size(); ++i) {
        const double normal = NormalAt(seed, HashName(parameter.spec.name), i);
        values[i] = around_one ? 1 + 0.2 * normal : deviation * normal;
      }
      SetWeight(parameter.spec.name, values);
    }
  }

  std::vector<double> Weight(const std::string& name) const { return ToHost(Find(name).weight); }
  std::vector<double> Gradient(const std::string& name) const {
    return ToHost(Find(name).gradient);
  }
  void SetWeight(const std::string& name, const std::vector<double>& values) {
    const Tensor& master = Find(name).master;
    FATHOM_CHECK_EQ(values.size(), master.elements());
    ConvertElements(values.data(), DType::kFloat64, master.raw(), master.dtype(), values.size());
    table_.RoundWeights(*stream_);
  }

  struct Options {
    Routing routing = Routing::kTopK;
    bool training = true;
    // Mean over all tokens of the batch, as for one micro-batch per step.
    double routing_coefficient = 0;
    double balance_coefficient = 0;  // mean over the sequences
    // One for each layer, of tokens and of experts; empty: chosen by the model.
    std::vector<std::vector<int32_t>> replay;
    std::vector<std::vector<int32_t>> expert_replay;
    bool logits = false;
  };
  struct Result {
    double loss = 0;                               // mean cross-entropy of the counted labels
    double auxiliary = 0;                          // after its coefficient
    std::vector<double> losses;                    // of each row
    std::vector<double> residual;                  // after the last layer
    std::vector<double> logits;                    // [n, V], when asked for
    std::vector<double> d_embedded;                // gradient of the embedded tokens, in training
    std::vector<std::vector<int32_t>> selections;  // of the sparse layers
    // In training, of each layer: [rows, routed]; empty for layers without experts.
    std::vector<std::vector<int32_t>> experts;
    std::vector<int32_t> selected;  // rows that each layer saw
    double objective() const { return loss + auxiliary; }
  };

  // One pass; in training the gradients of the parameters are those of `objective`.
  Result Run(const HostBatch& host, const Options& options) {
    ArenaScope scope(arena_);
    const MicroBatch batch = Upload(host, *stream_, arena_);
    Pass pass = stage_.NewPass(*stream_, arena_, batch);
    pass.routing = options.routing;
    pass.training = options.training;
    pass.auxiliary_weight = options.routing_coefficient / static_cast<double>(batch.rows());
    pass.balance_weight = options.balance_coefficient / static_cast<double>(batch.sequences);
    pass.replay = UploadReplay(options.replay, 1);
    pass.expert_replay = UploadReplay(options.expert_replay, stage_.config().routed);

    Result result;
    int64_t counted = 0;
    for (int32_t label : host.labels) counted += label >= 0;
    const double weight = counted > 0 ? 1.0 / static_cast<double>(counted) : 0;
    if (options.training) Launch(*stream_, Fill{.value = 0, .y = table_.gradients()});
    stage_.Forward(pass, batch);
    const Tensor losses = arena_.New(StatisticsDType(pass.residual.dtype()), {batch.rows()});
    stage_.Loss(pass, batch, weight, losses);
    result.losses = ToHost(losses);
    for (double loss : result.losses) result.loss += weight * loss;
    result.residual = ToHost(pass.residual);
    result.auxiliary =
        pass.auxiliary_loss.data<double>()[0] + pass.auxiliary_part.data<double>()[0];
    result.selected.assign(pass.selected.data<int32_t>(),
                           pass.selected.data<int32_t>() + pass.selected.elements());
    CollectSelections(pass, &result);
    if (options.logits) {
      const Tensor logits = arena_.New(losses.dtype(), {batch.rows(), stage_.config().vocabulary});
      stage_.head().Logits(pass, logits);
      result.logits = ToHost(logits);
    }
    if (options.training) {
      stage_.Backward(pass, batch);
      result.d_embedded = ToHost(pass.d_residual);
    }
    return result;
  }

  const ParameterTable& table() const { return table_; }
  Stage& stage() { return stage_; }
  Stream& stream() { return *stream_; }
  Arena& arena() { return arena_; }

 private:
  const Parameter& Find(const std::string& name) const {
    const Parameter* parameter = table_.Find(name);
    FATHOM_CHECK(parameter != nullptr) << name;
    return *parameter;
  }

  static std::vector<double> ToHost(const Tensor& tensor) {
    std::vector<double> values(tensor.elements());
    ConvertElements(tensor.raw(), tensor.dtype(), values.data(), DType::kFloat64, values.size());
    return values;
  }

  // `width`: of a row; 1 makes vectors.
  ReplayedSelection UploadReplay(const std::vector<std::vector<int32_t>>& replay, int64_t width) {
    ReplayedSelection tensors;
    for (const std::vector<int32_t>& rows : replay) {
      if (rows.empty()) {
        tensors.emplace_back();
        continue;
      }
      const int64_t count = rows.size();
      tensors.push_back(
          arena_.New(DType::kInt32, width == 1 ? Shape{count} : Shape{count / width, width}));
      stream_->CopyToDevice(rows.data(), tensors.back());
    }
    return tensors;
  }

  // Sparse layers only write their indices in training: in evaluation their memory is given back.
  void CollectSelections(const Pass& pass, Result* result) {
    if (!pass.training) return;
    for (const LayerSelection& selection : pass.selections) {
      const int32_t* index = selection.index.data<int32_t>();
      result->selections.emplace_back(index, index + selection.index.elements());
    }
    result->experts.resize(stage_.config().plan.layers.size());
    for (const LayerExperts& layer : pass.experts) {
      const int32_t* experts = layer.experts.data<int32_t>();
      result->experts[layer.layer].assign(experts, experts + layer.experts.elements());
    }
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  TensorGroup tensor_;
  ExpertGroup experts_;
  ParameterTable table_;
  Stage stage_;
};

// Tokens and labels drawn from `seed`, below `vocabulary`.
inline HostBatch RandomBatch(int64_t sequences, int64_t length, int64_t vocabulary, uint64_t seed) {
  HostBatch batch = HostBatch::WholeSequences(sequences, length);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    const auto words =
        Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, {static_cast<uint32_t>(seed), 7});
    batch.tokens[i] = words[0] % vocabulary;
    batch.labels[i] = words[1] % vocabulary;
  }
  return batch;
}

// H h differs from d, heads share keys, every dim is its own number.
inline ModelConfig SmallConfig(const std::vector<PlanSegment>& segments, Gate gate,
                               int64_t reset_every = 0) {
  ModelConfig config;
  config.d = 20;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 6;
  config.ffn = 28;
  config.vocabulary = 23;
  config.experts = 5;
  config.routed = 2;
  config.shared = 2;
  config.expert_ffn = 9;
  config.gate = gate;
  config.plan = MakeLayerPlan(segments, reset_every);
  config.reset_every = reset_every;
  return config;
}

inline PlanSegment DenseLayers(int64_t repeat) {
  return {.repeat = repeat, .layer = {}, .group = {}};
}
inline PlanSegment MoeLayers(int64_t repeat) {
  return {.repeat = repeat, .layer = {.experts = true}, .group = {}};
}
inline PlanSegment SparseMoeLayers(int64_t repeat, int64_t sparsity) {
  return {.repeat = repeat,
          .layer = {.kind = LayerKind::kSparse, .sparsity = sparsity, .experts = true},
          .group = {}};
}
inline PlanSegment SparseLayers(int64_t repeat, int64_t sparsity) {
  return {.repeat = repeat, .layer = {LayerKind::kSparse, sparsity}, .group = {}};
}

}  // namespace fathom::testing
