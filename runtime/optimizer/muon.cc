#include "runtime/optimizer/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/optimizer.h"

namespace fathom {
namespace {

// Elements of the matrices that one rank orthogonalises at a time, so that scratch stays small and
// caches warm.
constexpr int64_t kRoundElements = int64_t{1} << 22;

Tensor Flat(const Tensor& matrix) { return matrix.Reshape({matrix.elements()}); }

// Matrix `i` of a batch.
Tensor MatrixOf(const Tensor& batch, int64_t i) {
  return batch.Rows(i, i + 1).Reshape({batch.dim(1), batch.dim(2)});
}

// What tensor rank `rank` of `ranks` holds of a matrix.
Tensor PartOf(const Tensor& matrix, int dim, int ranks, int rank) {
  if (dim < 0) return matrix;
  const int64_t size = matrix.dim(dim) / ranks;
  return dim == 0 ? matrix.Rows(rank * size, (rank + 1) * size)
                  : matrix.Columns(rank * size, (rank + 1) * size);
}

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

Muon::Muon(const OptimizerConfig& config, std::vector<MuonMatrix> matrices, int replica,
           Communicator& parts)
    : config_(config),
      matrices_(std::move(matrices)),
      replica_(replica),
      parts_(parts),
      rounds_(MakeRounds()) {}

std::vector<Muon::Round> Muon::MakeRounds() const {
  // By shape and by the dim that is split, since both are the same for all parts of a round.
  std::map<std::array<int64_t, 3>, Round> by_shape;
  for (const MuonMatrix& matrix : matrices_) {
    if (matrix.owner.data != replica_) continue;
    Round& round = by_shape[{matrix.shape[0], matrix.shape[1], matrix.part.dim}];
    round.resize(parts_.size());
    round[matrix.owner.tensor].push_back(&matrix);
  }
  std::vector<Round> rounds;
  for (const auto& [key, all] : by_shape) {
    const size_t limit = std::max<int64_t>(1, kRoundElements / (key[0] * key[1]));
    size_t most = 0;
    for (const auto& of_owner : all) most = std::max(most, of_owner.size());
    for (size_t begin = 0; begin < most; begin += limit) {
      Round& round = rounds.emplace_back(all.size());
      for (size_t owner = 0; owner < all.size(); ++owner) {
        const auto& matrices = all[owner];
        const size_t end = std::min(matrices.size(), begin + limit);
        if (begin < end) round[owner].assign(&matrices[begin], &matrices[0] + end);
      }
    }
  }
  return rounds;
}

void Muon::CopyParts(const Round& round, const Tensor& buffer, bool to_buffer,
                     Stream& stream) const {
  int64_t offset = 0;
  for (const auto& of_owner : round) {
    for (const MuonMatrix* matrix : of_owner) {
      const Tensor gradient = Flat(matrix->gradient);
      const Tensor place = buffer.Rows(offset, offset + gradient.elements());
      offset += gradient.elements();
      Launch(stream, to_buffer ? Copy{.x = gradient, .y = place} : Copy{.x = place, .y = gradient});
    }
  }
}

absl::Status Muon::Run(const Round& round, Stream& stream, Arena& arena) {
  ArenaScope scope(arena);
  const int ranks = parts_.size();
  const MuonMatrix* any = nullptr;
  int64_t all = 0;  // matrices of the round
  for (const auto& of_owner : round) {
    all += of_owner.size();
    if (!of_owner.empty()) any = of_owner[0];
  }
  const DType dtype = any->gradient.dtype();
  const int dim = any->part.dim;
  const int64_t part_elements = any->gradient.elements();
  const int64_t owned = round[parts_.rank()].size();
  orthogonalized_ += owned;

  // [all, part] for the owners in their order, and [ranks, owned, part] from the ranks.
  const Tensor mine = arena.New(dtype, {all * part_elements});
  const Tensor parts = arena.New(dtype, {ranks * owned * part_elements});
  std::vector<int64_t> to_owners;
  for (const auto& of_owner : round) to_owners.push_back(of_owner.size() * part_elements);
  const std::vector<int64_t> from_ranks(ranks, owned * part_elements);
  CopyParts(round, mine, /*to_buffer=*/true, stream);
  FATHOM_RETURN_IF_ERROR(parts_.AllToAll(mine, to_owners, parts, from_ranks, stream).Wait(stream));
  if (owned > 0) {
    const Tensor batch = arena.New(dtype, {owned, any->shape[0], any->shape[1]});
    const auto each_part = [&](bool to_batch) {
      for (int64_t k = 0; k < ranks * owned; ++k) {
        const Tensor part =
            parts.Rows(k * part_elements, (k + 1) * part_elements).Reshape(any->gradient.shape());
        const Tensor place =
            PartOf(MatrixOf(batch, k % owned), dim, ranks, static_cast<int>(k / owned));
        Launch(stream, to_batch ? Copy{.x = part, .y = place} : Copy{.x = place, .y = part});
      }
    };
    each_part(/*to_batch=*/true);
    NewtonSchulz(stream, arena, batch, config_.newton_schulz_steps);
    each_part(/*to_batch=*/false);
  }
  FATHOM_RETURN_IF_ERROR(parts_.AllToAll(parts, from_ranks, mine, to_owners, stream).Wait(stream));
  CopyParts(round, mine, /*to_buffer=*/false, stream);
  return absl::OkStatus();
}

absl::Status Muon::Orthogonalize(Stream& stream, Arena& arena, const Tensor& step) {
  for (const MuonMatrix& matrix : matrices_) {
    if (matrix.momentum.absent()) continue;
    const Tensor gradient = Flat(matrix.gradient);
    Launch(stream, MuonMomentum{.gradient = gradient,
                                .step = step,
                                .mu = config_.momentum,
                                .momentum = Flat(matrix.momentum),
                                .direction = gradient});
  }
  for (const Round& round : rounds_) FATHOM_RETURN_IF_ERROR(Run(round, stream, arena));
  return absl::OkStatus();
}

void Muon::Apply(Stream& stream, const Tensor& step) const {
  for (const MuonMatrix& matrix : matrices_) {
    const int64_t larger = std::max(matrix.shape[0], matrix.shape[1]);
    Launch(stream, MuonApply{.direction = Flat(matrix.gradient),
                             .step = step,
                             .decay = config_.weight_decay,
                             .factor = 0.2 * std::sqrt(static_cast<double>(larger)),
                             .weight = Flat(matrix.weight)});
  }
}

}  // namespace fathom
