#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/status.h"
#include "parallel/data/parameter_layout.h"
#include "runtime/model/tensor_part.h"

namespace fathom {

// What a parameter is, which decides its optimizer, its decay and its initial values.
enum class ParameterRole {
  kMatrix,     // hidden matrices [out, in]: Muon, decayed
  kEmbedding,  // [V, d]: AdamW, decayed
  kHead,       // [V, d]: AdamW, decayed
  kNorm,       // AdamW, not decayed, starts at 1
  kRouter,     // AdamW, not decayed
  kScale,      // AdamW, not decayed, starts at 1
  // Of the selection of experts: moved by a rule of its own, not decayed, starts at 0. In place of
  // a gradient stands how often each expert was selected, which is no part of the gradient's norm.
  kExpertBias,
};

// The standard deviation of initial matrices, embedding, head and routers. Matrices that write to
// the residual have it divided by sqrt(2 * active layers).
inline constexpr double kInitialDeviation = 0.02;

// How the gradients that tensor ranks compute of one parameter belong together.
enum class GradientOverRanks {
  kOwn,      // each rank computes that of its part
  kSame,     // each rank computes the whole gradient; the first rank's counts
  kPartial,  // the gradient is the sum over the ranks
};

struct ParameterSpec {
  std::string name;  // as checkpoints have it: Hugging Face's names for Qwen3
  Shape shape;       // of the whole tensor
  ParameterRole role = ParameterRole::kMatrix;
  double deviation = 0;  // initial values are N(0, deviation), or 1 for norms and scales
  TensorPart part = {};  // what this rank holds
  GradientOverRanks gradient = GradientOverRanks::kSame;
  bool of_expert = false;  // of a routed expert, whose copies are on RankGroups::expert_replicas
  double bias_rate = 0;    // kExpertBias: how far one step moves it

  Shape local_shape() const { return part.ShapeOf(shape); }
};

// A parameter's tensors are of this rank's part of it, spec.local_shape().
struct Parameter {
  ParameterSpec spec;
  // What layers compute with: in BF16 matrices, embedding and head are bfloat16, all else is of
  // StatisticsDType.
  Tensor weight;
  // What is initialised, updated, saved and loaded, in StatisticsDType: where `weight` is of that
  // type it is `weight` itself, else `weight` is its rounded copy.
  Tensor master;
  Tensor gradient;  // StatisticsDType; absent in a table without gradients

  bool decayed() const {
    return spec.role == ParameterRole::kMatrix || spec.role == ParameterRole::kEmbedding ||
           spec.role == ParameterRole::kHead;
  }
};

// Matrices with the same input that lie one after the other in memory, so that one product serves
// all: [sum of rows, in].
struct FusedMatrix {
  Tensor weight;
  Tensor gradient;
};

// All parameters that a rank holds, in one order that drives initialisation, optimizer choice,
// decay and saving. Layers add theirs when they are constructed and use them once Allocate has run.
class ParameterTable {
 public:
  ParameterTable() = default;
  ParameterTable(const ParameterTable&) = delete;
  ParameterTable& operator=(const ParameterTable&) = delete;

  // The pointer stays valid as long as the table.
  const Parameter* Add(ParameterSpec spec);
  // Adds matrices that agree in their second dim, contiguous in memory.
  const FusedMatrix* AddFused(std::vector<ParameterSpec> specs);

  // Gives every parameter its memory. Contents are undefined. `dtype`: of the computation.
  absl::Status Allocate(Device& device, DType dtype, bool with_gradients,
                        const ParameterLayoutOptions& options = {});
  // Where the parameters stand in the common buffers, once they are allocated.
  const ParameterLayout& layout() const { return layout_; }
  // Sets all weights from their masters. Whoever writes to masters calls it afterwards.
  void RoundWeights(Stream& stream) const;

  const std::deque<Parameter>& all() const { return parameters_; }
  // nullptr when there is none of that name.
  const Parameter* Find(const std::string& name) const;
  int64_t elements() const;  // of the whole tensors
  // All masters and all gradients, each as one vector, by the layout.
  const Tensor& masters() const { return all_masters_; }
  const Tensor& gradients() const { return all_gradients_; }
  // Of weights and masters.
  int64_t weight_bytes() const { return weights_.bytes() + masters_.bytes(); }
  int64_t gradient_bytes() const { return gradients_.bytes(); }

 private:
  struct Group {
    size_t first;  // of parameters_
    size_t count;
    FusedMatrix fused;
  };

  ParameterLayout MakeLayout(const ParameterLayoutOptions& options) const;

  std::deque<Parameter> parameters_;
  std::deque<Group> groups_;
  ParameterLayout layout_;
  Buffer masters_;
  Buffer weights_;  // rounded copies, at the same element offsets; empty where there are none
  Buffer gradients_;
  Tensor all_masters_;
  Tensor all_weights_;
  Tensor all_gradients_;
};

// Fills all masters with their initial values: a pure function of (seed, name, element), computed
// in double on the host and rounded once. Weights are rounded from the masters.
absl::Status InitializeParameters(const ParameterTable& table, uint64_t seed, Stream& stream);

// Copies `elements` numbers on the host, converting between float32 and float64, and from bfloat16.
void ConvertElements(const void* from, DType from_dtype, void* to, DType to_dtype,
                     int64_t elements);

}  // namespace fathom
