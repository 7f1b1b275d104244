#include "runtime/model/sparse_block.h"

#include "core/accounting.h"
#include "kernels/elementwise.h"
#include "kernels/gated_residual.h"
#include "kernels/router.h"

namespace fathom {
namespace {

// Puts the selected rows x [m, d] back into `residual`, each rank those that it holds.
void ScatterHeld(Pass& pass, const Rows& rows, const Tensor& x, const Tensor& residual) {
  Launch(pass.stream, ScatterRows{.x = x,
                                  .index = rows.index,
                                  .y = residual,
                                  .first_row = pass.held.begin,
                                  .count = rows.count});
}

}  // namespace

struct SparseBlock::SparseSaved final : Saved {
  Tensor s;  // [n] stat, router logits
  Tensor z;  // [n] stat, adjusted
  Rows rows;
  Tensor x;           // [m, d] the selected rows before the layer
  Tensor a;           // [m, d]
  Tensor f;           // [m, d]
  Tensor selected_z;  // [m] stat, z of the selected rows; sequence parallelism only
  AttentionPart::Saved attention;
  std::unique_ptr<Saved> ffn;
};

SparseBlock::SparseBlock(const LayerSetup& setup, int64_t layer, const std::string& prefix)
    : tensor_(setup.tensor),
      layer_(layer),
      sparsity_(setup.config.plan.layers[layer].spec.sparsity),
      gate_(setup.config.gate),
      alignment_(setup.config.alignment),
      tau_(setup.config.tau),
      increment_(setup.config.increment),
      router_(setup.table.Add({.name = prefix + "depth_router.weight",
                               .shape = {setup.config.d},
                               .role = ParameterRole::kRouter,
                               .deviation = kInitialDeviation,
                               .gradient = setup.tensor.sequence() ? GradientOverRanks::kPartial
                                                                   : GradientOverRanks::kSame})),
      attention_(setup, prefix, GradientOverRanks::kSame),
      ffn_(MakeFeedForward(setup, layer, prefix, GradientOverRanks::kSame)) {
  if (gate_ == Gate::kXMod) {
    scale_ = setup.table.Add(
        {.name = prefix + "depth_scale", .shape = {}, .role = ParameterRole::kScale});
  }
}

const Tensor& SparseBlock::RoutedLogit(const SparseSaved& saved) const {
  return alignment_ == Alignment::kRaw ? saved.s : saved.z;
}

void SparseBlock::ComputeLogits(Pass& pass, const Tensor& s) const {
  if (tensor_.size() == 1) {
    Launch(pass.stream, RouterLogits{.x = pass.residual, .w = router_->weight, .s = s});
    return;
  }
  const ElementRange part = tensor_.PartOf(pass.rows());
  ArenaScope scope(pass.arena);
  const Tensor mine = pass.arena.New(s.dtype(), {part.size()});
  const Tensor x = tensor_.sequence() ? pass.residual : pass.residual.Rows(part.begin, part.end);
  Launch(pass.stream, RouterLogits{.x = x, .w = router_->weight, .s = mine});
  tensor_.AllGatherRows(mine, s, pass.stream);
}

void SparseBlock::GatherSelected(Pass& pass, const Rows& rows, const Tensor& residual,
                                 const Tensor& x) const {
  Launch(pass.stream, GatherRows{.x = residual,
                                 .first_row = pass.held.begin,
                                 .index = rows.index,
                                 .y = x,
                                 .count = rows.count});
  tensor_.AllReduce(x, pass.stream);
}

void SparseBlock::Route(Pass& pass, SparseSaved& saved) const {
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  const int64_t n = pass.rows();
  const int64_t k = pass.length / sparsity_;
  const DType stat = StatisticsDType(pass.residual.dtype());
  Rows& rows = saved.rows;
  const bool replayed = !pass.replay.empty();
  rows.capacity = replayed                         ? pass.replay[layer_].dim(0)
                  : pass.routing == Routing::kTopK ? pass.sequences * k
                                                   : n;
  const double sequences = static_cast<double>(pass.sequences);
  rows.pairs = sequences * SelectedPairs(pass.all.pairs / sequences, pass.length, k);
  rows.index = arena.New(DType::kInt32, {rows.capacity});
  rows.positions = arena.New(DType::kInt32, {rows.capacity});
  rows.segments = arena.New(DType::kInt32, pass.all.segments.shape());
  saved.s = arena.New(stat, {n});
  saved.z = arena.New(stat, {n});

  ComputeLogits(pass, saved.s);
  Launch(stream, AdjustLogits{.s = saved.s, .counts = pass.counts, .tau = tau_, .z = saved.z});
  const Tensor selected = pass.selected.Rows(layer_, layer_ + 1);
  if (pass.routing == Routing::kCausal && !replayed) {
    rows.count = selected;
    Launch(stream,
           SelectThreshold{.value = RoutedLogit(saved), .index = rows.index, .count = rows.count});
  } else {
    Launch(stream, Fill{.value = static_cast<double>(rows.capacity), .y = selected});
    if (replayed) {
      Launch(stream, Copy{.x = pass.replay[layer_], .y = rows.index});
    } else {
      Launch(stream,
             SelectTopK{
                 .z = saved.z.Reshape({pass.sequences, pass.length}), .k = k, .index = rows.index});
    }
  }
  Launch(stream, DescribeSelection{.index = rows.index,
                                   .count = rows.count,
                                   .increment = increment_,
                                   .counts = pass.counts,
                                   .row_positions = pass.all.positions,
                                   .positions = rows.positions,
                                   .borders = pass.all.segments,
                                   .segments = rows.segments});
}

std::unique_ptr<Saved> SparseBlock::Forward(Pass& pass) const {
  const Arena::Mark start = pass.arena.mark();
  auto saved = std::make_unique<SparseSaved>();
  Route(pass, *saved);
  const Rows& rows = saved->rows;
  if (pass.training && pass.auxiliary_weight != 0) {
    Launch(pass.stream, RouterLoss{.u = RoutedLogit(*saved),
                                   .index = rows.index,
                                   .count = rows.count,
                                   .weight = pass.auxiliary_weight,
                                   .loss = pass.auxiliary_loss});
  }

  const DType dtype = pass.residual.dtype();
  const Shape shape{rows.capacity, pass.residual.dim(1)};
  saved->x = pass.arena.New(dtype, shape);
  saved->a = pass.arena.New(dtype, shape);
  saved->f = pass.arena.New(dtype, shape);
  RmsNorm norm{.x = pass.residual, .index = rows.index, .sum = saved->x};
  if (tensor_.sequence()) {
    GatherSelected(pass, rows, pass.residual, saved->x);
    norm = {.x = saved->x};
  }
  attention_.Forward(pass, rows, norm, saved->a, &saved->attention);
  saved->ffn = ffn_->Forward(pass, rows, RmsNorm{.x = saved->x, .addend = saved->a}, saved->f);
  GatedResidual update{.gate = gate_,
                       .x = saved->x,
                       .a = saved->a,
                       .f = saved->f,
                       .z = saved->z,
                       .scale = scale_ != nullptr ? scale_->weight : Tensor(),
                       .index = rows.index,
                       .y = pass.residual,
                       .count = rows.count};
  if (!tensor_.sequence()) {
    Launch(pass.stream, update);
  } else {
    saved->selected_z = pass.arena.New(saved->z.dtype(), {rows.capacity});
    Launch(pass.stream, GatherRows{.x = saved->z.Reshape({pass.rows(), 1}),
                                   .index = rows.index,
                                   .y = saved->selected_z.Reshape({rows.capacity, 1}),
                                   .count = rows.count});
    ArenaScope scope(pass.arena);
    update.z = saved->selected_z;
    update.index = Tensor();
    update.y = pass.arena.New(dtype, shape);
    Launch(pass.stream, update);
    ScatterHeld(pass, rows, update.y, pass.residual);
  }
  pass.selections.push_back({.layer = layer_, .index = rows.index, .adjusted_logits = saved->z});
  if (pass.training) return saved;
  pass.arena.Release(start);
  return nullptr;
}

void SparseBlock::Backward(Pass& pass, const Saved& saved_base) const {
  const auto& saved = static_cast<const SparseSaved&>(saved_base);
  ArenaScope scope(pass.arena);
  Stream& stream = pass.stream;
  const Rows& rows = saved.rows;
  const DType dtype = saved.x.dtype();
  const bool gated = gate_ != Gate::kNone;

  // The layer's input stands again in pass.residual.
  ScatterHeld(pass, rows, saved.x, pass.residual);
  const bool sequence = tensor_.sequence();
  Tensor dy = pass.d_residual;
  if (sequence) {
    dy = pass.arena.New(dtype, saved.x.shape());
    GatherSelected(pass, rows, pass.d_residual, dy);
  }

  const Tensor d_x = pass.arena.New(dtype, saved.x.shape());
  const Tensor d_f = pass.arena.New(dtype, saved.x.shape());
  const Tensor dz = gated ? pass.arena.New(StatisticsDType(dtype), {rows.capacity}) : Tensor();
  Launch(stream, GatedResidualBackward{.gate = gate_,
                                       .dy = dy,
                                       .index = sequence ? Tensor() : rows.index,
                                       .a = saved.a,
                                       .f = saved.f,
                                       .z = sequence ? saved.selected_z : saved.z,
                                       .scale = scale_ != nullptr ? scale_->weight : Tensor(),
                                       .d_x = d_x,
                                       .d_f = d_f,
                                       .dz = dz,
                                       .d_scale = scale_ != nullptr ? scale_->gradient : Tensor(),
                                       .count = rows.count});

  // The FFN's norm reads x + a: its gradient joins that of x and that of a. With the X-MoD gate the
  // branch a + f is scaled as a whole, so a starts from d_f; otherwise a and x share one gradient.
  const bool shared = gate_ != Gate::kXMod;
  const Tensor d_a = shared ? d_x : d_f;
  ffn_->Backward(pass, rows, *saved.ffn, d_f,
                 RmsNormBackward{.x = saved.x,
                                 .addend = saved.a,
                                 .base = d_a,
                                 .dx = d_a,
                                 .base2 = shared ? Tensor() : d_x,
                                 .dx2 = shared ? Tensor() : d_x});
  RmsNormBackward norm{.x = saved.x, .base = d_x, .dx = pass.d_residual, .dx_index = rows.index};
  if (sequence) {
    norm.dx = d_x;
    norm.dx_index = Tensor();
  }
  attention_.Backward(pass, rows, saved.attention, d_a, norm);
  if (sequence) ScatterHeld(pass, rows, d_x, pass.d_residual);
  if (gated || pass.auxiliary_weight != 0) RouterBackwardPass(pass, saved, dz);
}

void SparseBlock::RouterBackwardPass(Pass& pass, const SparseSaved& saved, const Tensor& dz) const {
  const Tensor ds = pass.arena.New(saved.s.dtype(), saved.s.shape());
  Launch(pass.stream, RouterLogitGradient{.u = RoutedLogit(saved),
                                          .index = saved.rows.index,
                                          .dz = dz,
                                          .weight = pass.auxiliary_weight,
                                          .ds = ds});
  Launch(pass.stream, RouterBackward{.ds = ds.Rows(pass.held.begin, pass.held.end),
                                     .x = pass.residual,
                                     .w = router_->weight,
                                     .dx = pass.d_residual,
                                     .dw = router_->gradient});
}

}  // namespace fathom
