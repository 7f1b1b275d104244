#pragma once

#include <memory>
#include <vector>

#include "core/arena.h"
#include "core/device.h"
#include "parallel/element_range.h"

namespace fathom {

// The tokens that a layer sees, packed into m rows: all of them in a dense layer, the selected ones
// in a sparse layer.
struct Rows {
  int64_t capacity = 0;  // m, rows of the packed tensors
  // The layer's input and output are this rank's rows of the m alone: it is a layer that sees all
  // tokens, under sequence parallelism.
  bool split = false;
  Tensor index;      // [m] int32: the rows' places in the residual; absent: all, in order
  Tensor count;      // [1] int32: rows in use, where only the device knows; absent: all m
  Tensor positions;  // [m] int32: original positions, for the rotary angles
  Tensor segments;   // [S + 1] int32: borders of sequences and documents among the rows
  // Query-key pairs of attention over these rows, for the cost; see SelectedPairs.
  double pairs = 0;
};

enum class Routing {
  kTopK,    // the k largest logits of a sequence
  kCausal,  // logits >= 0, which depends on the past alone
};

// What a layer keeps from forward to backward; each kind of layer derives its own.
struct Saved {
  virtual ~Saved() = default;
};

// What a sparse layer selected. Only training keeps the tensors.
struct LayerSelection {
  int64_t layer;
  Tensor index;            // [m] int32, rows
  Tensor adjusted_logits;  // [n] stat
};

// Which experts the rows of a layer went to.
struct LayerExperts {
  int64_t layer;
  int64_t layer_rows;  // m, of the micro-batch
  ElementRange rows;   // of them, which this rank has seen
  Tensor experts;      // [rows, routed] int32, ascending
  Tensor scores;       // [rows, E] stat
  Tensor bias;         // [E] stat
};

// A selection that is given instead of made, one tensor of ascending rows [B * k] int32 for each
// layer (absent for layers that see all tokens).
using ReplayedSelection = std::vector<Tensor>;

// One micro-batch on its way through the layers: B sequences of L tokens, n = B * L rows. All
// tensors live in `arena`.
struct Pass {
  Pass(Stream& stream, Arena& arena) : stream(stream), arena(arena) {}

  Stream& stream;
  Arena& arena;
  int64_t sequences = 0;  // B
  int64_t length = 0;     // L
  Routing routing = Routing::kTopK;
  bool training = false;        // keep what backward needs
  double auxiliary_weight = 0;  // of a token in the routing loss: coefficient / global tokens
  ReplayedSelection replay;     // empty: the model selects
  // Of a sequence in the balance loss of experts: coefficient / sequences of the global batch.
  double balance_weight = 0;
  // The experts that are given instead of selected, [m, routed] int32 for each layer (absent for
  // layers without experts); empty: the model selects.
  ReplayedSelection expert_replay;

  Rows all;  // every row of the micro-batch
  // The rows whose residual this rank holds: all of them, or its part under sequence parallelism.
  ElementRange held;
  Tensor cosine;  // [L, h/2] stat, rotary tables
  Tensor sine;
  Tensor counts;  // [n] stat: how often a token was selected since the last full layer
  Tensor
      selected;  // [layers] int32: rows that layer I saw, for reports; sparse layers write theirs
  Tensor auxiliary_loss;  // [1] float64, +=: what all tensor ranks have
  Tensor auxiliary_part;  // [1] float64, +=: this rank's part of a sum over the tensor ranks
  // [layers, E] stat, += in evaluation: the rows of each expert, of a layer on all tensor ranks
  // together; absent: not wanted.
  Tensor expert_rows;

  Tensor residual;    // [held, d] T: forward leaves the layer's output here, backward its input
  Tensor d_residual;  // [held, d] T: the gradient of `residual`

  // What each sparse layer selected, in order of execution; for dumps and tests.
  std::vector<LayerSelection> selections;
  std::vector<LayerExperts> experts;          // likewise, of each layer with experts
  std::vector<std::unique_ptr<Saved>> saved;  // of the layers, in order of execution

  int64_t rows() const { return sequences * length; }
};

}  // namespace fathom
