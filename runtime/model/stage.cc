#include "runtime/model/stage.h"

#include <algorithm>
#include <cmath>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rotary.h"
#include "runtime/model/dense_block.h"
#include "runtime/model/sparse_block.h"

namespace fathom {
namespace {

// Matrices that write to the residual start smaller, by the depth that a token passes on average.
double OutputDeviation(const LayerPlan& plan) {
  const double depth = std::max(1.0, std::round(plan.active_layers()));
  return kInitialDeviation / std::sqrt(2 * depth);
}

std::unique_ptr<Block> MakeBlock(const ModelConfig& config, int64_t layer, double output_deviation,
                                 ParameterTable& table) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  switch (config.plan.layers[layer].spec.kind) {
    case LayerKind::kDense:
      return std::make_unique<DenseBlock>(config, prefix, output_deviation, table);
    case LayerKind::kSparse:
      return std::make_unique<SparseBlock>(config, layer, prefix, output_deviation, table);
  }
  return nullptr;
}

std::vector<std::unique_ptr<Block>> MakeBlocks(const ModelConfig& config, ParameterTable& table) {
  const double output_deviation = OutputDeviation(config.plan);
  std::vector<std::unique_ptr<Block>> blocks;
  for (size_t layer = 0; layer < config.plan.layers.size(); ++layer) {
    blocks.push_back(MakeBlock(config, layer, output_deviation, table));
  }
  return blocks;
}

}  // namespace

Stage::Stage(const ModelConfig& config, ParameterTable& table)
    : config_(config),
      embedding_(table.Add({"model.embed_tokens.weight",
                            {config.vocabulary, config.d},
                            ParameterRole::kEmbedding,
                            kInitialDeviation})),
      blocks_(MakeBlocks(config, table)),
      head_(config, table) {}

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
  pass.residual = arena.New(dtype_, {n, config_.d});
  pass.all.capacity = n;
  pass.all.pairs = batch.pairs;
  pass.all.positions = batch.positions;
  pass.all.segments = batch.segments;
  Launch(stream, Fill{.value = 0, .y = pass.counts});
  Launch(stream, Fill{.value = static_cast<double>(n), .y = pass.selected});
  Launch(stream, Fill{.value = 0, .y = pass.auxiliary_loss});
  return pass;
}

void Stage::Forward(Pass& pass, const MicroBatch& batch) const {
  Launch(pass.stream,
         Embedding{.tokens = batch.tokens, .table = embedding_->weight, .x = pass.residual});
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    std::unique_ptr<Saved> saved = blocks_[layer]->Forward(pass);
    if (pass.training) pass.saved.push_back(std::move(saved));
    if (config_.plan.layers[layer].resets_counts) {
      Launch(pass.stream, Fill{.value = 0, .y = pass.counts});
    }
  }
}

void Stage::Loss(Pass& pass, const MicroBatch& batch, double loss_weight, const Tensor& losses) {
  head_.Forward(pass, batch.labels, loss_weight, losses);
}

void Stage::Backward(Pass& pass, const MicroBatch& batch) const {
  FATHOM_CHECK(pass.training);
  FATHOM_CHECK_EQ(pass.saved.size(), blocks_.size() + 1);
  head_.Backward(pass);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    (*block)->Backward(pass, *pass.saved.back());
    pass.saved.pop_back();
  }
  Launch(pass.stream,
         EmbeddingBackward{
             .tokens = batch.tokens, .dx = pass.d_residual, .d_table = embedding_->gradient});
}

}  // namespace fathom
