#include "runtime/model/stage.h"

#include <algorithm>
#include <cmath>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rotary.h"
#include "runtime/model/dense_block.h"
#include "runtime/model/sparse_block.h"
#include "runtime/model/token_table.h"

namespace fathom {
namespace {

// Matrices that write to the residual start smaller, by the depth that a token passes on average.
double OutputDeviation(const LayerPlan& plan) {
  const double depth = std::max(1.0, std::round(plan.active_layers()));
  return kInitialDeviation / std::sqrt(2 * depth);
}

std::unique_ptr<Block> MakeBlock(const LayerSetup& setup, int64_t layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  switch (setup.config.plan.layers[layer].spec.kind) {
    case LayerKind::kDense:
      return std::make_unique<DenseBlock>(setup, layer, prefix);
    case LayerKind::kSparse:
      return std::make_unique<SparseBlock>(setup, layer, prefix);
  }
  return nullptr;
}

}  // namespace

Stage::Stage(const ModelConfig& config, const LayerRange& layers, TensorGroup& tensor,
             ExpertGroup& experts, ParameterTable& table)
    : config_(config),
      layers_(layers),
      tensor_(tensor),
      tokens_(tensor.PartOf(config.vocabulary)),
      first_parameter_(table.all().size()) {
  const LayerSetup setup{.config = config_,
                         .tensor = tensor,
                         .experts = experts,
                         .table = table,
                         .output_deviation = OutputDeviation(config.plan)};
  if (layers.begin == 0) {
    embedding_ =
        table.Add(TokenTable(setup, "model.embed_tokens.weight", ParameterRole::kEmbedding));
  }
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    first_parameters_.push_back(table.all().size());
    blocks_.push_back(MakeBlock(setup, layer));
  }
  head_parameter_ = table.all().size();
  if (layers.end == static_cast<int64_t>(config.plan.layers.size())) head_.emplace(setup);
}

bool Stage::NeedsCounts() const {
  return layers_.begin > 0 && !config_.plan.layers[layers_.begin - 1].resets_counts;
}

absl::Status Stage::Prepare(Device& device, Stream& stream, DType dtype, int64_t length) {
  dtype_ = dtype;
  const DType stat = StatisticsDType(dtype);
  const Shape shape{length, config_.head_dim / 2};
  const int64_t bytes = shape.elements() * SizeOf(stat);
  FATHOM_ASSIGN_OR_RETURN(tables_, Buffer::Allocate(device, 2 * bytes));
  cosine_ = tables_.View(0, stat, shape);
  sine_ = tables_.View(bytes, stat, shape);
  Launch(stream, RotaryTables{.theta = config_.theta, .cosine = cosine_, .sine = sine_});
  return absl::OkStatus();
}

Pass Stage::NewPass(Stream& stream, Arena& arena, const MicroBatch& batch) const {
  const int64_t n = batch.rows();
  const int64_t layers = config_.plan.layers.size();
  Pass pass(stream, arena);
  pass.sequences = batch.sequences;
  pass.length = batch.length;
  pass.cosine = cosine_;
  pass.sine = sine_;
  pass.counts = arena.New(StatisticsDType(dtype_), {n});
  pass.selected = arena.New(DType::kInt32, {layers});
  pass.auxiliary_loss = arena.New(DType::kFloat64, {1});
  pass.auxiliary_part = arena.New(DType::kFloat64, {1});
  pass.held = tensor_.sequence() ? tensor_.PartOf(n) : ElementRange{0, n};
  pass.residual = arena.New(dtype_, {pass.held.size(), config_.d});
  pass.all.capacity = n;
  pass.all.split = tensor_.sequence();
  pass.all.pairs = batch.pairs;
  pass.all.positions = batch.positions;
  pass.all.segments = batch.segments;
  Launch(stream, Fill{.value = 0, .y = pass.counts});
  Launch(stream, Fill{.value = static_cast<double>(n), .y = pass.selected});
  Launch(stream, Fill{.value = 0, .y = pass.auxiliary_loss});
  Launch(stream, Fill{.value = 0, .y = pass.auxiliary_part});
  return pass;
}

void Stage::Embed(Pass& pass, const MicroBatch& batch) const {
  Embedding embedding{.tokens = batch.tokens,
                      .table = embedding_->weight,
                      .first_token = tokens_.begin,
                      .x = pass.residual};
  if (!tensor_.sequence()) {
    Launch(pass.stream, embedding);
    tensor_.AllReduce(pass.residual, pass.stream);
    return;
  }
  ArenaScope scope(pass.arena);
  embedding.x = pass.arena.New(dtype_, {pass.rows(), config_.d});
  Launch(pass.stream, embedding);
  tensor_.ReduceScatterRows(embedding.x, pass.residual, pass.stream);
}

void Stage::EmbedBackward(Pass& pass, const MicroBatch& batch) const {
  ArenaScope scope(pass.arena);
  Tensor dx = pass.d_residual;
  if (tensor_.sequence()) {
    dx = pass.arena.New(dtype_, {pass.rows(), config_.d});
    tensor_.AllGatherRows(pass.d_residual, dx, pass.stream);
  }
  Launch(pass.stream, EmbeddingBackward{.tokens = batch.tokens,
                                        .dx = dx,
                                        .d_table = embedding_->gradient,
                                        .first_token = tokens_.begin});
}

void Stage::Forward(Pass& pass, const MicroBatch& batch) const {
  if (has_embedding()) Embed(pass, batch);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    std::unique_ptr<Saved> saved = blocks_[i]->Forward(pass);
    if (pass.training) pass.saved.push_back(std::move(saved));
    if (config_.plan.layers[layers_.begin + i].resets_counts) {
      Launch(pass.stream, Fill{.value = 0, .y = pass.counts});
    }
  }
}

void Stage::Loss(Pass& pass, const MicroBatch& batch, double loss_weight, const Tensor& losses) {
  head_->Forward(pass, batch.labels, loss_weight, losses);
}

void Stage::Backward(Pass& pass, const MicroBatch& batch,
                     const std::function<void(size_t)>& done) const {
  FATHOM_CHECK(pass.training);
  FATHOM_CHECK_EQ(pass.saved.size(), blocks_.size() + (has_head() ? 1 : 0));
  if (has_head()) {
    head_->Backward(pass);
    if (done) done(head_parameter_);
  }
  for (size_t i = blocks_.size(); i-- > 0;) {
    blocks_[i]->Backward(pass, *pass.saved.back());
    pass.saved.pop_back();
    if (done) done(first_parameters_[i]);
  }
  if (has_embedding()) EmbedBackward(pass, batch);
  if (done) done(first_parameter_);
}

}  // namespace fathom
