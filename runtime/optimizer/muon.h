#pragma once

#include <vector>

#include "core/arena.h"
#include "core/job.h"
#include "parallel/communicator.h"
#include "parallel/data/parameter_layout.h"
#include "runtime/model/parameters.h"

namespace fathom {

// A hidden matrix under Muon. Tensors are of this rank's part of it, of one dtype.
struct MuonMatrix {
  Shape shape;      // of the whole matrix
  TensorPart part;  // whose other parts, of equal size, other ranks hold
  MatrixOwner owner;
  Tensor weight;
  Tensor gradient;
  Tensor momentum;  // absent where only the ranks of the owner's copy keep it
};

// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024), with the
// update scaled as in Liu et al., "Muon is scalable for LLM training", 2025, section 2.2:
//   momentum = mu * momentum + g,  direction = g + mu * momentum
//   O = NewtonSchulz(direction)
//   w = w * (1 - lr * decay) - lr * 0.2 * sqrt(max(rows, columns)) * O
// Each matrix is orthogonalised whole, by its owner: the ranks that hold parts of the owner's copy,
// which are tensor ranks, send their parts of the direction to it and get their parts of O back.
// Matrices of equal shape are taken together, in rounds of bounded size.
class Muon {
 public:
  // `replica`: which of the matrices' copies this rank has. `parts`, the ranks that hold the parts
  // of one copy, outlive the object.
  Muon(const OptimizerConfig& config, std::vector<MuonMatrix> matrices, int replica,
       Communicator& parts);

  // Updates the momenta and, for the matrices that this copy's ranks own, turns each gradient,
  // already summed over all ranks, into this rank's part of O. Called by all ranks of `parts`.
  // `step`: see kernels/optimizer.h. Scratch memory is taken from `arena` and given back.
  absl::Status Orthogonalize(Stream& stream, Arena& arena, const Tensor& step);
  // Updates all weights from O, which stands in the gradients.
  void Apply(Stream& stream, const Tensor& step) const;

  // How many matrices this rank orthogonalised so far.
  int64_t orthogonalized() const { return orthogonalized_; }

 private:
  // Matrices of one shape that are orthogonalised at the same time: by each rank of `parts`, those
  // that it owns.
  using Round = std::vector<std::vector<const MuonMatrix*>>;

  std::vector<Round> MakeRounds() const;
  absl::Status Run(const Round& round, Stream& stream, Arena& arena);
  // Copies between the gradients of a round's matrices, in the order of their owners, and a buffer.
  void CopyParts(const Round& round, const Tensor& buffer, bool to_buffer, Stream& stream) const;

  OptimizerConfig config_;
  std::vector<MuonMatrix> matrices_;
  int replica_;
  Communicator& parts_;
  std::vector<Round> rounds_;
  int64_t orthogonalized_ = 0;
};

// x [batch, rows, columns] becomes about U V^T, with U S V^T the singular value decomposition of
// each matrix: `steps` times X <- a X + (b A + c A^2) X with A = X X^T (X^T X from the right when
// rows > columns), from X / (|X|_F + 1e-7); a, b, c = 3.4445, -4.7750, 2.0315.
void NewtonSchulz(Stream& stream, Arena& arena, const Tensor& x, int64_t steps);

}  // namespace fathom
