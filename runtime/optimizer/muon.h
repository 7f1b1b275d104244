#pragma once

#include <vector>

#include "core/arena.h"
#include "core/job.h"

namespace fathom {

// A hidden matrix under Muon. All tensors are [rows, columns] of one dtype.
struct MuonMatrix {
  Tensor weight;
  Tensor gradient;
  Tensor momentum;
};

// Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024), with the
// update scaled as in Liu et al., "Muon is scalable for LLM training", 2025, section 2.2:
//   momentum = mu * momentum + g,  direction = g + mu * momentum
//   O = NewtonSchulz(direction)
//   w = w * (1 - lr * decay) - lr * 0.2 * sqrt(max(rows, columns)) * O
// Matrices of equal shape are taken together, in batches of bounded size.
class Muon {
 public:
  Muon(const OptimizerConfig& config, std::vector<MuonMatrix> matrices);

  // `step`: see kernels/optimizer.h. Scratch memory is taken from `arena` and given back.
  void Step(Stream& stream, Arena& arena, const Tensor& step) const;

 private:
  OptimizerConfig config_;
  std::vector<std::vector<MuonMatrix>> batches_;  // of one shape each
};

// x [batch, rows, columns] becomes about U V^T, with U S V^T the singular value decomposition of
// each matrix: `steps` times X <- a X + (b A + c A^2) X with A = X X^T (X^T X from the right when
// rows > columns), from X / (|X|_F + 1e-7); a, b, c = 3.4445, -4.7750, 2.0315.
void NewtonSchulz(Stream& stream, Arena& arena, const Tensor& x, int64_t steps);

}  // namespace fathom
