#include "core/accounting.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace fathom {
namespace {

// Adds parameters of one layer.
class LayerParameters {
 public:
  LayerParameters(int64_t index, double share, std::vector<CountedParameter>* parameters)
      : prefix_(absl::StrCat("model.layers.", index, ".")),
        share_(share),
        parameters_(parameters) {}

  // `share`: of the tokens that the layer sees.
  void Add(const std::string& name, std::vector<int64_t> dims, double share = 1) {
    parameters_->push_back(
        {.name = prefix_ + name, .dims = std::move(dims), .share = share_ * share});
  }
  // The three matrices of a SwiGLU FFN.
  void AddFfn(const std::string& name, int64_t width, int64_t d, double share = 1) {
    Add(name + ".gate_proj.weight", {width, d}, share);
    Add(name + ".up_proj.weight", {width, d}, share);
    Add(name + ".down_proj.weight", {d, width}, share);
  }

 private:
  std::string prefix_;
  double share_;
  std::vector<CountedParameter>* parameters_;
};

void AppendExperts(const ModelConfig& model, LayerParameters* layer) {
  layer->Add("mlp.gate.weight", {model.experts, model.d});
  layer->Add("mlp.gate.e_score_correction_bias", {model.experts});
  if (model.shared > 0) {
    layer->AddFfn("mlp.shared_experts", model.shared * model.expert_ffn, model.d);
  }
  const double share = static_cast<double>(model.routed) / static_cast<double>(model.experts);
  for (int64_t expert = 0; expert < model.experts; ++expert) {
    layer->AddFfn(absl::StrCat("mlp.experts.", expert), model.expert_ffn, model.d, share);
  }
}

// The parameters of layer `index`, in the order in which a token meets them.
void AppendLayer(const ModelConfig& model, const LayerSpec& layer, int64_t index,
                 std::vector<CountedParameter>* parameters) {
  LayerParameters of_layer(index, 1.0 / static_cast<double>(layer.sparsity), parameters);
  const int64_t queries = model.heads * model.head_dim;
  const int64_t keys = model.kv_heads * model.head_dim;
  if (layer.kind == LayerKind::kSparse) of_layer.Add("depth_router.weight", {model.d});
  of_layer.Add("input_layernorm.weight", {model.d});
  of_layer.Add("self_attn.q_proj.weight", {queries, model.d});
  of_layer.Add("self_attn.k_proj.weight", {keys, model.d});
  of_layer.Add("self_attn.v_proj.weight", {keys, model.d});
  of_layer.Add("self_attn.q_norm.weight", {model.head_dim});
  of_layer.Add("self_attn.k_norm.weight", {model.head_dim});
  of_layer.Add("self_attn.o_proj.weight", {model.d, queries});
  of_layer.Add("post_attention_layernorm.weight", {model.d});
  if (layer.experts) {
    AppendExperts(model, &of_layer);
  } else {
    of_layer.AddFfn("mlp", model.ffn, model.d);
  }
  if (layer.kind == LayerKind::kSparse && model.gate == Gate::kXMod) {
    of_layer.Add("depth_scale", {});
  }
}

// Elements of the matrices that a token of a layer passes, its gate of experts left out: the linear
// work of the token is twice this.
double TokenMatrixElements(const ModelConfig& model, const LayerSpec& layer) {
  const double queries = static_cast<double>(model.heads * model.head_dim);
  const double keys = static_cast<double>(model.kv_heads * model.head_dim);
  const double d = static_cast<double>(model.d);
  const int64_t ffn = layer.experts ? (model.routed + model.shared) * model.expert_ffn : model.ffn;
  return d * (2 * queries + 2 * keys) + 3 * d * static_cast<double>(ffn);
}

// Of the gate of a layer's experts, for each token that the layer sees.
double GateFlops(const ModelConfig& model, const LayerSpec& layer) {
  return layer.experts ? 2 * static_cast<double>(model.d * model.experts) : 0;
}

// Of one query with one key: a dot product, and a value added by its weight.
double PairFlops(const ModelConfig& model) {
  return 4 * static_cast<double>(model.heads * model.head_dim);
}

}  // namespace

int64_t CountedParameter::elements() const {
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  return elements;
}

std::vector<CountedParameter> EnumerateParameters(const ModelConfig& model) {
  std::vector<CountedParameter> parameters;
  parameters.push_back({"model.embed_tokens.weight", {model.vocabulary, model.d}});
  for (size_t i = 0; i < model.plan.layers.size(); ++i) {
    AppendLayer(model, model.plan.layers[i].spec, static_cast<int64_t>(i), &parameters);
  }
  parameters.push_back({"model.norm.weight", {model.d}});
  parameters.push_back({"lm_head.weight", {model.vocabulary, model.d}});
  return parameters;
}

ParameterCounts CountParameters(const ModelConfig& model) {
  ParameterCounts counts;
  double active = 0;
  for (const CountedParameter& parameter : EnumerateParameters(model)) {
    counts.total += parameter.elements();
    active += parameter.share * static_cast<double>(parameter.elements());
  }
  counts.active = std::llround(active);
  return counts;
}

double SelectedPairs(double pairs, int64_t length, int64_t selected) {
  FATHOM_CHECK(0 <= selected && selected <= length);
  const double k = static_cast<double>(selected);
  const double whole = static_cast<double>(length);
  if (length == 1) return k;
  // The share of pairs of different tokens that documents leave is exactly 1 for one document.
  return k + (pairs - whole) / (whole * (whole - 1) / 2) * (k * (k - 1) / 2);
}

LayerFlops CountLayerFlops(const ModelConfig& model, int64_t sequence_length,
                           std::optional<double> pairs) {
  FATHOM_CHECK(sequence_length > 0);
  const double length = static_cast<double>(sequence_length);
  const double sequence_pairs = pairs.value_or(length * (length + 1) / 2);
  LayerFlops flops;
  for (const PlannedLayer& layer : model.plan.layers) {
    const int64_t selected = sequence_length / layer.spec.sparsity;
    const double linear = 2 * TokenMatrixElements(model, layer.spec) + GateFlops(model, layer.spec);
    const double router = layer.spec.kind == LayerKind::kSparse ? 2.0 * model.d : 0;
    flops.layers.push_back(
        (linear * static_cast<double>(selected) +
         PairFlops(model) * SelectedPairs(sequence_pairs, sequence_length, selected)) /
            length +
        router);
  }
  flops.head = 2.0 * model.d * model.vocabulary;
  return flops;
}

FlopsPerToken CountFlopsPerToken(const ModelConfig& model, int64_t sequence_length,
                                 std::optional<double> pairs) {
  FATHOM_CHECK(sequence_length > 0);
  const double length = static_cast<double>(sequence_length);
  FlopsPerToken flops;
  for (const PlannedLayer& layer : model.plan.layers) {
    const double linear = 2 * TokenMatrixElements(model, layer.spec);
    const double sparsity = static_cast<double>(layer.spec.sparsity);
    flops.paper_forward += linear / sparsity + PairFlops(model) * length / (sparsity * sparsity);
  }
  const LayerFlops exact = CountLayerFlops(model, sequence_length, pairs);
  for (const double layer : exact.layers) flops.exact_forward += layer;
  flops.exact_forward += exact.head;
  flops.exact_training = 3 * flops.exact_forward;
  return flops;
}

}  // namespace fathom
