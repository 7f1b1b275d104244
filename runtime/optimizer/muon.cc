#include "runtime/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"

namespace fathom {
namespace {

// Elements of one batch of matrices, so that scratch stays small and caches warm.
constexpr int64_t kBatchElements = int64_t{1} << 22;

std::vector<std::vector<MuonMatrix>> Batches(std::vector<MuonMatrix> matrices) {
  std::map<std::pair<int64_t, int64_t>, std::vector<std::vector<MuonMatrix>>> by_shape;
  for (MuonMatrix& matrix : matrices) {
    auto& batches = by_shape[{matrix.weight.dim(0), matrix.weight.dim(1)}];
    const int64_t limit = std::max<int64_t>(1, kBatchElements / matrix.weight.elements());
    if (batches.empty() || static_cast<int64_t>(batches.back().size()) == limit) {
      batches.emplace_back();
    }
    batches.back().push_back(matrix);
  }
  std::vector<std::vector<MuonMatrix>> all;
  for (auto& [shape, batches] : by_shape) {
    for (auto& batch : batches) all.push_back(std::move(batch));
  }
  return all;
}

// Matrix `i` of a batch, as a vector.
Tensor Flat(const Tensor& batch, int64_t i) {
  return batch.Rows(i, i + 1).Reshape({batch.dim(1) * batch.dim(2)});
}

Tensor Flat(const Tensor& matrix) { return matrix.Reshape({matrix.elements()}); }

}  // namespace

void NewtonSchulz(Stream& stream, Arena& arena, const Tensor& x, int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  ArenaScope scope(arena);
  const bool tall = x.dim(1) > x.dim(2);
  const int64_t side = std::min(x.dim(1), x.dim(2));
  const Tensor gram = arena.New(x.dtype(), {x.dim(0), side, side});
  const Tensor polynomial = arena.New(x.dtype(), {x.dim(0), side, side});
  const Tensor next = arena.New(x.dtype(), x.shape());

  Launch(stream, NormalizeMatrices{.x = x});
  for (int64_t i = 0; i < steps; ++i) {
    Launch(stream, MatMul{.a = x, .b = x, .c = gram, .transpose_a = tall, .transpose_b = !tall});
    Launch(stream, Copy{.x = gram, .y = polynomial});
    Launch(stream, MatMul{.a = gram, .b = gram, .c = polynomial, .alpha = kC, .beta = kB});
    Launch(stream, Copy{.x = x, .y = next});
    Launch(stream, MatMul{.a = tall ? x : polynomial,
                          .b = tall ? polynomial : x,
                          .c = next,
                          .alpha = 1,
                          .beta = kA});
    Launch(stream, Copy{.x = next, .y = x});
  }
}

Muon::Muon(const OptimizerConfig& config, std::vector<MuonMatrix> matrices)
    : config_(config), batches_(Batches(std::move(matrices))) {}

void Muon::Step(Stream& stream, Arena& arena, const Tensor& step) const {
  for (const std::vector<MuonMatrix>& batch : batches_) {
    ArenaScope scope(arena);
    const int64_t count = batch.size();
    const Tensor& first = batch[0].momentum;
    const int64_t rows = first.dim(0), columns = first.dim(1);
    const Tensor directions = arena.New(first.dtype(), {count, rows, columns});
    for (int64_t i = 0; i < count; ++i) {
      Launch(stream, MuonMomentum{.gradient = Flat(batch[i].gradient),
                                  .step = step,
                                  .mu = config_.momentum,
                                  .momentum = Flat(batch[i].momentum),
                                  .direction = Flat(directions, i)});
    }
    NewtonSchulz(stream, arena, directions, config_.newton_schulz_steps);
    const double factor = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
    for (int64_t i = 0; i < count; ++i) {
      Launch(stream, MuonApply{.direction = Flat(directions, i),
                               .step = step,
                               .decay = config_.weight_decay,
                               .factor = factor,
                               .weight = Flat(batch[i].weight)});
    }
  }
}

}  // namespace fathom
