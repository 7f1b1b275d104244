#include "runtime/huggingface/config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/status.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kQwen3[] = "Qwen3ForCausalLM";
constexpr char kGlm4Moe[] = "Glm4MoeForCausalLM";
// Enough for any model, and few enough to be written out.
constexpr int64_t kMaximumLayers = 100'000;

// What a message quotes of JSON.
std::string Quote(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 200 ? text : text.substr(0, 200) + "...";
}

// A field, or null where the object lacks it.
const Json& Field(const Json& object, const std::string& name) {
  static const Json& null = *new Json;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

// A field that Fathom's layers leave no choice in.
struct FixedField {
  const char* name;
  Json right;
  Json otherwise;  // what transformers takes when the field is left out
  const char* why;
};

const std::vector<FixedField>& FixedFields(const std::string& architecture) {
  static const auto& qwen3 = *new std::vector<FixedField>{
      {"attention_bias", false, false, "Fathom's projections have no biases"},
      {"attention_dropout", 0, 0, "Fathom has no dropout"},
      {"hidden_act", "silu", "silu", "Fathom's FFNs are SwiGLU"},
      {"quantization_config", nullptr, nullptr, "Fathom reads no quantized weights"},
      {"use_sliding_window", false, false, "Fathom's layers attend to the whole sequence"},
  };
  static const auto& glm4_moe = *new std::vector<FixedField>{
      qwen3[0],
      qwen3[1],
      qwen3[2],
      qwen3[3],
      {"use_qk_norm", true, false, "Fathom norms queries and keys"},
      {"norm_topk_prob", true, true, "Fathom's weights of a token's experts add up to 1"},
      {"routed_scaling_factor", 1, 1, "Fathom's weights of a token's experts add up to 1"},
      {"n_group", 1, 1, "Fathom has no groups of experts"},
      {"topk_group", 1, 1, "Fathom has no groups of experts"},
      {"num_nextn_predict_layers", 0, 0, "Fathom predicts no further tokens"},
      {"num_mtp_layers", 0, 0, "Fathom predicts no further tokens"},
  };
  return architecture == kQwen3 ? qwen3 : glm4_moe;
}

// Reads the fields of one file, keeping the first refusal and the names of all that is missing.
class ConfigReader {
 public:
  ConfigReader(const Json& config, const std::string& path) : config_(config), path_(path) {}

  absl::Status status() const {
    if (!status_.ok() || missing_.empty()) return status_;
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " lacks ", absl::StrJoin(missing_, ", ")));
  }

  void Refuse(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }

  // The architecture by `architectures` and `model_type`, of which a file may lack one.
  std::string Architecture() {
    const Json& listed = Field(config_, "architectures");
    const Json& type = Field(config_, "model_type");
    for (const auto& [architecture, its_type] : {std::pair(kQwen3, "qwen3"),  //
                                                 std::pair(kGlm4Moe, "glm4_moe")}) {
      const bool is_listed = listed == Json::array({architecture});
      if (is_listed && (type.is_null() || type == its_type)) return architecture;
      if (listed.is_null() && type == its_type) return architecture;
    }
    Refuse(absl::StrCat("architectures is ", Quote(listed), " and model_type is ", Quote(type),
                        ", but only ", kQwen3, " (qwen3) and ", kGlm4Moe,
                        " (glm4_moe) can be converted"));
    return "";
  }

  int64_t Integer(const std::string& name) {
    const Json& value = Field(config_, name);
    if (value.is_null()) missing_.push_back(name);
    return ToInteger(name, value);
  }
  // 0 when the field is left out.
  int64_t OptionalInteger(const std::string& name) { return ToInteger(name, Field(config_, name)); }

  double Number(const std::string& name) {
    const Json& value = Field(config_, name);
    if (value.is_null()) missing_.push_back(name);
    if (!value.is_null() && !value.is_number()) {
      Refuse(absl::StrCat(name, " is ", Quote(value), ", but it must be a number"));
    }
    return value.is_number() ? value.get<double>() : 0;
  }

  bool Flag(const std::string& name) {
    const Json& value = Field(config_, name);
    if (!value.is_null() && !value.is_boolean()) {
      Refuse(absl::StrCat(name, " is ", Quote(value), ", but it must be true or false"));
    }
    return value == true;
  }

  void Check(const FixedField& fixed) {
    const Json& given = Field(config_, fixed.name);
    const Json& value = given.is_null() ? fixed.otherwise : given;
    if (value == fixed.right) return;
    Refuse(absl::StrCat(fixed.name, " is ", Quote(value), given.is_null() ? " when left out" : "",
                        ", but ", fixed.why, ": it must be ", Quote(fixed.right)));
  }

  void CheckLayerTypes() {
    const Json& types = Field(config_, "layer_types");
    for (const Json& type : types) {
      if (type == "full_attention") continue;
      Refuse(absl::StrCat("layer_types has ", Quote(type),
                          ", but Fathom's layers attend to the whole sequence: all must be "
                          "\"full_attention\""));
    }
  }

  // The base of the rotary angles, which transformers 4 writes beside `rope_scaling`, and 5 into
  // `rope_parameters`.
  double Theta() {
    std::optional<double> theta;
    for (const char* name : {"rope_parameters", "rope_scaling"}) {
      const Json& rope = Field(config_, name);
      if (rope.is_null()) continue;
      CheckRope(name, rope);
      if (rope.is_object()) TakeTheta(Field(rope, "rope_theta"), &theta);
    }
    TakeTheta(Field(config_, "rope_theta"), &theta);
    if (!theta) missing_.push_back("rope_theta");
    return theta.value_or(0);
  }

  // The share of each head that turns: of those in `rope_parameters` and beside it.
  void CheckRotaryFactor(double otherwise) {
    const Json& rope = Field(config_, "rope_parameters");
    const Json& inner = rope.is_object() ? Field(rope, "partial_rotary_factor") : rope;
    const Json& outer = Field(config_, "partial_rotary_factor");
    const bool given = !inner.is_null() || !outer.is_null();
    for (const Json& value : {given ? inner : Json(otherwise), outer}) {
      if (value.is_null() || value == 1) continue;
      Refuse(absl::StrCat("partial_rotary_factor is ", Quote(value), given ? "" : " when left out",
                          ", but Fathom turns whole heads: it must be 1"));
    }
  }

 private:
  int64_t ToInteger(const std::string& name, const Json& value) {
    if (value.is_null()) return 0;
    if (value.is_number_integer() && value >= 0 && value <= int64_t{1} << 40) {
      return value.get<int64_t>();
    }
    Refuse(absl::StrCat(name, " is ", Quote(value), ", but it must be a whole number, 0 or more"));
    return 0;
  }

  void CheckRope(const std::string& name, const Json& rope) {
    bool is_plain = rope.is_object();
    for (const char* type : {"rope_type", "type"}) {
      const Json& value = is_plain ? Field(rope, type) : rope;
      is_plain = is_plain && (value.is_null() || value == "default");
    }
    if (is_plain) return;
    Refuse(absl::StrCat(name, " is ", Quote(rope),
                        ", but Fathom's rotary angles are not scaled: its rope_type must be "
                        "\"default\""));
  }

  void TakeTheta(const Json& value, std::optional<double>* theta) {
    if (value.is_null()) return;
    if (!value.is_number()) {
      Refuse(absl::StrCat("rope_theta is ", Quote(value), ", but it must be a number"));
      return;
    }
    const double number = value.get<double>();
    if (theta->value_or(number) != number) {
      Refuse(
          absl::StrCat("rope_theta is given as ", Quote(Json(**theta)), " and as ", Quote(value)));
    }
    *theta = number;
  }

  const Json& config_;
  const std::string& path_;
  std::vector<std::string> missing_;
  absl::Status status_;
};

// `dense` layers of `layers`, then mixtures.
std::vector<PlanSegment> Segments(int64_t dense, int64_t layers) {
  std::vector<PlanSegment> segments;
  if (dense > 0) segments.push_back({.repeat = dense});
  if (dense < layers) segments.push_back({.repeat = layers - dense, .layer = {.experts = true}});
  return segments;
}

// Sizes that both architectures have.
void ReadSizes(ConfigReader& reader, ModelConfig* model) {
  model->d = reader.Integer("hidden_size");
  model->heads = reader.Integer("num_attention_heads");
  model->kv_heads = reader.Integer("num_key_value_heads");
  model->vocabulary = reader.Integer("vocab_size");
  model->eps = reader.Number("rms_norm_eps");
  model->theta = reader.Theta();
}

void ReadExperts(ConfigReader& reader, ModelConfig* model) {
  model->experts = reader.Integer("n_routed_experts");
  model->routed = reader.Integer("num_experts_per_tok");
  model->shared = reader.Integer("n_shared_experts");
  model->expert_ffn = reader.Integer("moe_intermediate_size");
  model->scoring = Scoring::kSigmoid;
}

// How many of the first layers have a plain FFN.
absl::StatusOr<int64_t> CountDenseLayers(const ModelConfig& model) {
  const std::vector<PlannedLayer>& layers = model.plan.layers;
  const auto first = std::find_if(layers.begin(), layers.end(), [](const PlannedLayer& layer) {
    return !(layer.spec == LayerSpec());
  });
  const bool expressible = std::all_of(first, layers.end(), [](const PlannedLayer& layer) {
    return layer.spec == LayerSpec{.experts = true};
  });
  if (expressible) return first - layers.begin();
  return absl::InvalidArgumentError(
      absl::StrCat("Hugging Face has no model for the plan ", ShortForm(model.plan.segments),
                   ", only for dense layers, mixtures of experts, and the first followed by the "
                   "second: use --format checkpoint"));
}

// Glm4Moe ranks groups of experts by their best two, also where there is one group.
absl::Status CheckExperts(const ModelConfig& model) {
  if (model.scoring != Scoring::kSigmoid) {
    return absl::InvalidArgumentError(absl::StrCat("model.scoring is SOFTMAX, but ", kGlm4Moe,
                                                   " has SIGMOID: use --format checkpoint"));
  }
  if (model.experts >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.experts is ", model.experts, ", but ",
                                                 kGlm4Moe,
                                                 " needs at least 2: use --format checkpoint"));
}

OrderedJson CommonFields(const ModelConfig& model, int64_t positions, DType dtype) {
  const std::string type(Name(dtype));
  return {{"hidden_size", model.d},
          {"num_hidden_layers", model.plan.layers.size()},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"vocab_size", model.vocabulary},
          {"max_position_embeddings", positions},
          {"rms_norm_eps", model.eps},
          // transformers 4 reads the first two, 5 the third.
          {"rope_theta", model.theta},
          {"partial_rotary_factor", 1.0},
          {"rope_parameters",
           {{"rope_type", "default"}, {"rope_theta", model.theta}, {"partial_rotary_factor", 1.0}}},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"torch_dtype", type},
          {"dtype", type}};
}

}  // namespace

absl::StatusOr<HuggingFaceConfig> ParseHuggingFaceConfig(const std::string& text,
                                                         const std::string& path) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  ConfigReader reader(json, path);
  const std::string architecture = reader.Architecture();
  if (architecture.empty()) return reader.status();
  const bool is_mixture = architecture == kGlm4Moe;
  for (const FixedField& fixed : FixedFields(architecture)) reader.Check(fixed);
  if (!is_mixture) reader.CheckLayerTypes();
  reader.CheckRotaryFactor(is_mixture ? 0.5 : 1);

  HuggingFaceConfig config;
  ModelConfig& model = config.model;
  ReadSizes(reader, &model);
  const int64_t layers = reader.Integer("num_hidden_layers");
  const int64_t dense = is_mixture ? reader.Integer("first_k_dense_replace") : layers;
  model.ffn =
      dense > 0 ? reader.Integer("intermediate_size") : reader.OptionalInteger("intermediate_size");
  if (is_mixture) ReadExperts(reader, &model);
  // Of Glm4Moe's configuration the head's width is no field of its own.
  model.head_dim = is_mixture ? reader.OptionalInteger("head_dim") : reader.Integer("head_dim");
  if (is_mixture && model.head_dim == 0 && model.heads > 0) model.head_dim = model.d / model.heads;
  config.positions = reader.OptionalInteger("max_position_embeddings");
  config.tied = reader.Flag("tie_word_embeddings");
  FATHOM_RETURN_IF_ERROR(reader.status());
  if (layers < 1 || layers > kMaximumLayers) {
    reader.Refuse(absl::StrCat("num_hidden_layers is ", layers, ", but it must be between 1 and ",
                               kMaximumLayers));
    return reader.status();
  }
  model.plan = MakeLayerPlan(Segments(std::min(dense, layers), layers), /*reset_every=*/0);
  return config;
}

absl::StatusOr<std::string> MakeHuggingFaceConfig(const ModelConfig& model, int64_t positions,
                                                  DType dtype) {
  FATHOM_ASSIGN_OR_RETURN(const int64_t dense, CountDenseLayers(model));
  OrderedJson config;
  if (!model.plan.has_experts()) {
    config = {{"architectures", OrderedJson::array({kQwen3})},
              {"model_type", "qwen3"},
              {"intermediate_size", model.ffn},
              {"use_sliding_window", false}};
  } else {
    FATHOM_RETURN_IF_ERROR(CheckExperts(model));
    config = {{"architectures", OrderedJson::array({kGlm4Moe})},
              {"model_type", "glm4_moe"},
              // Of the dense layers; without any it is not used, but it must be a width.
              {"intermediate_size", model.ffn > 0 ? model.ffn : model.expert_ffn},
              {"moe_intermediate_size", model.expert_ffn},
              {"n_routed_experts", model.experts},
              {"num_experts_per_tok", model.routed},
              {"n_shared_experts", model.shared},
              {"first_k_dense_replace", dense},
              {"n_group", 1},
              {"topk_group", 1},
              {"norm_topk_prob", true},
              {"routed_scaling_factor", 1.0},
              {"use_qk_norm", true},
              {"num_nextn_predict_layers", 0}};
  }
  config.update(CommonFields(model, positions, dtype));
  return config.dump(2) + "\n";
}

}  // namespace fathom
