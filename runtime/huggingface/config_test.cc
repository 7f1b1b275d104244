#include "runtime/huggingface/config.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace fathom {
namespace {

using nlohmann::json;

// As transformers 4 wrote it for published models.
constexpr char kQwen3[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

// As transformers 5 writes it.
constexpr char kGlm4Moe[] = R"({
  "architectures": ["Glm4MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "dtype": "float32", "first_k_dense_replace": 1, "head_dim": 8, "hidden_act": "silu",
  "hidden_size": 64, "intermediate_size": 192, "max_position_embeddings": 128,
  "model_type": "glm4_moe", "moe_intermediate_size": 24, "n_group": 1, "n_routed_experts": 6,
  "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 16,
  "num_experts_per_tok": 3, "num_hidden_layers": 4, "num_key_value_heads": 4,
  "num_nextn_predict_layers": 0, "rms_norm_eps": 1e-05,
  "rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 12345.5, "rope_type": "default"},
  "routed_scaling_factor": 1.0, "tie_word_embeddings": false, "topk_group": 1,
  "use_qk_norm": true, "vocab_size": 257})";

absl::StatusOr<HuggingFaceConfig> Parse(const json& config) {
  return ParseHuggingFaceConfig(config.dump(), "DIR/config.json");
}

// The configuration with the fields of `patch` in place of its own; null takes one away.
absl::StatusOr<HuggingFaceConfig> ParsePatched(const char* config, const char* patch) {
  json patched = json::parse(config);
  patched.merge_patch(json::parse(patch));
  return Parse(patched);
}

TEST(HuggingFaceConfigTest, ReadsQwen3) {
  const auto config = Parse(json::parse(kQwen3));
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& model = config->model;
  EXPECT_EQ(model.d, 1024);
  EXPECT_EQ(model.heads, 16);
  EXPECT_EQ(model.kv_heads, 8);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.ffn, 3072);
  EXPECT_EQ(model.vocabulary, 151936);
  EXPECT_EQ(model.theta, 1e6);
  EXPECT_EQ(model.eps, 1e-6);
  EXPECT_EQ(ShortForm(model.plan.segments), "28*D");
  EXPECT_EQ(model.plan.layers.size(), 28);
  EXPECT_EQ(config->positions, 40960);
  EXPECT_TRUE(config->tied);
}

TEST(HuggingFaceConfigTest, ReadsGlm4Moe) {
  const auto config = Parse(json::parse(kGlm4Moe));
  ASSERT_TRUE(config.ok()) << config.status();
  const ModelConfig& model = config->model;
  EXPECT_EQ(model.d, 64);
  EXPECT_EQ(model.heads, 16);
  EXPECT_EQ(model.kv_heads, 4);
  EXPECT_EQ(model.head_dim, 8);
  EXPECT_EQ(model.ffn, 192);
  EXPECT_EQ(model.experts, 6);
  EXPECT_EQ(model.routed, 3);
  EXPECT_EQ(model.shared, 2);
  EXPECT_EQ(model.expert_ffn, 24);
  EXPECT_EQ(model.scoring, Scoring::kSigmoid);
  EXPECT_EQ(model.theta, 12345.5);
  EXPECT_EQ(model.eps, 1e-5);
  EXPECT_EQ(ShortForm(model.plan.segments), "D + 3*E");
  EXPECT_FALSE(config->tied);
}

TEST(HuggingFaceConfigTest, CountsTheDenseLayersOfGlm4Moe) {
  const std::pair<const char*, const char*> plans[] = {
      {R"({"first_k_dense_replace": 0})", "4*E"},
      {R"({"first_k_dense_replace": 3})", "3*D + E"},
      {R"({"first_k_dense_replace": 9})", "4*D"}};
  for (const auto& [patch, plan] : plans) {
    const auto config = ParsePatched(kGlm4Moe, patch);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(ShortForm(config->model.plan.segments), plan);
  }
}

TEST(HuggingFaceConfigTest, WhatIsLeftOutIsAsInTransformers) {
  const struct {
    const char* config;
    const char* patch;
  } kAccepted[] = {
      {kQwen3, R"({"attention_bias": null, "attention_dropout": null, "hidden_act": null,
                   "tie_word_embeddings": null, "use_sliding_window": null})"},
      {kQwen3, R"({"architectures": null})"},
      {kQwen3, R"({"model_type": null})"},
      {kQwen3, R"({"max_position_embeddings": null})"},
      {kQwen3, R"({"layer_types": ["full_attention", "full_attention"]})"},
      {kQwen3, R"({"rope_theta": null, "rope_scaling": {"type": "default", "rope_theta": 5e5}})"},
      {kGlm4Moe, R"({"norm_topk_prob": null, "routed_scaling_factor": null, "n_group": null,
                     "topk_group": null, "num_nextn_predict_layers": null})"},
      {kGlm4Moe, R"({"rope_parameters": {"partial_rotary_factor": null},
                     "partial_rotary_factor": 1})"},
  };
  for (const auto& [config, patch] : kAccepted) {
    EXPECT_TRUE(ParsePatched(config, patch).ok()) << patch << ParsePatched(config, patch).status();
  }
  EXPECT_FALSE(ParsePatched(kQwen3, R"({"tie_word_embeddings": null})")->tied);
  EXPECT_EQ(ParsePatched(kQwen3, R"({"max_position_embeddings": null})")->positions, 0);
  EXPECT_EQ(ParsePatched(kGlm4Moe, R"({"head_dim": null})")->model.head_dim, 4);
}

TEST(HuggingFaceConfigTest, WhatFathomCannotComputeIsRefused) {
  const struct {
    const char* config;
    const char* patch;
    const char* message;
  } kRefused[] = {
      {kQwen3, R"({"attention_bias": true})",
       "attention_bias is true, but Fathom's projections have no biases: it must be false"},
      {kQwen3, R"({"attention_dropout": 0.1})",
       "attention_dropout is 0.1, but Fathom has no dropout: it must be 0"},
      {kQwen3, R"({"hidden_act": "gelu"})",
       "hidden_act is \"gelu\", but Fathom's FFNs are SwiGLU: it must be \"silu\""},
      {kQwen3, R"({"quantization_config": {"bits": 4}})",
       "quantization_config is {\"bits\":4}, but Fathom reads no quantized weights: it must be "
       "null"},
      {kQwen3, R"({"use_sliding_window": true})",
       "use_sliding_window is true, but Fathom's layers attend to the whole sequence: it must be "
       "false"},
      {kQwen3, R"({"layer_types": ["full_attention", "sliding_attention"]})",
       "layer_types has \"sliding_attention\", but Fathom's layers attend to the whole sequence: "
       "all must be \"full_attention\""},
      {kQwen3, R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})",
       "rope_scaling is {\"factor\":4,\"rope_type\":\"yarn\"}, but Fathom's rotary angles are not "
       "scaled: its rope_type must be \"default\""},
      {kQwen3, R"({"rope_scaling": {"type": "linear"}})",
       "rope_scaling is {\"type\":\"linear\"}, but Fathom's rotary angles are not scaled: its "
       "rope_type must be \"default\""},
      {kQwen3, R"({"rope_parameters": {"rope_theta": 1e4}})",
       "rope_theta is given as 10000.0 and as 1000000"},
      {kQwen3, R"({"partial_rotary_factor": 0.5})",
       "partial_rotary_factor is 0.5, but Fathom turns whole heads: it must be 1"},
      {kQwen3, R"({"num_hidden_layers": 0})",
       "num_hidden_layers is 0, but it must be between 1 and 100000"},
      {kQwen3, R"({"hidden_size": -1})",
       "hidden_size is -1, but it must be a whole number, 0 or more"},
      {kQwen3, R"({"hidden_size": 1.5})",
       "hidden_size is 1.5, but it must be a whole number, 0 or more"},
      {kQwen3, R"({"rms_norm_eps": "1e-6"})", "rms_norm_eps is \"1e-6\", but it must be a number"},
      {kQwen3, R"({"tie_word_embeddings": 1})",
       "tie_word_embeddings is 1, but it must be true or false"},
      {kGlm4Moe, R"({"rope_parameters": {"partial_rotary_factor": 0.5}})",
       "partial_rotary_factor is 0.5, but Fathom turns whole heads: it must be 1"},
      {kGlm4Moe, R"({"partial_rotary_factor": 0.5})",
       "partial_rotary_factor is 0.5, but Fathom turns whole heads: it must be 1"},
      {kGlm4Moe, R"({"rope_parameters": {"partial_rotary_factor": null}})",
       "partial_rotary_factor is 0.5 when left out, but Fathom turns whole heads: it must be 1"},
      {kGlm4Moe, R"({"n_group": 2})",
       "n_group is 2, but Fathom has no groups of experts: it must be 1"},
      {kGlm4Moe, R"({"topk_group": 2})",
       "topk_group is 2, but Fathom has no groups of experts: it must be 1"},
      {kGlm4Moe, R"({"norm_topk_prob": false})",
       "norm_topk_prob is false, but Fathom's weights of a token's experts add up to 1: it must be "
       "true"},
      {kGlm4Moe, R"({"routed_scaling_factor": 2.5})",
       "routed_scaling_factor is 2.5, but Fathom's weights of a token's experts add up to 1: it "
       "must be 1"},
      {kGlm4Moe, R"({"use_qk_norm": false})",
       "use_qk_norm is false, but Fathom norms queries and keys: it must be true"},
      {kGlm4Moe, R"({"use_qk_norm": null})",
       "use_qk_norm is false when left out, but Fathom norms queries and keys: it must be true"},
      {kGlm4Moe, R"({"num_nextn_predict_layers": 1})",
       "num_nextn_predict_layers is 1, but Fathom predicts no further tokens: it must be 0"},
      {kGlm4Moe, R"({"num_mtp_layers": 1})",
       "num_mtp_layers is 1, but Fathom predicts no further tokens: it must be 0"},
      {kQwen3, R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})",
       "architectures is [\"LlamaForCausalLM\"] and model_type is \"llama\", but only "
       "Qwen3ForCausalLM (qwen3) and Glm4MoeForCausalLM (glm4_moe) can be converted"},
      {kQwen3, R"({"architectures": ["Glm4MoeForCausalLM"]})",
       "architectures is [\"Glm4MoeForCausalLM\"] and model_type is \"qwen3\", but only "
       "Qwen3ForCausalLM (qwen3) and Glm4MoeForCausalLM (glm4_moe) can be converted"},
  };
  for (const auto& [config, patch, message] : kRefused) {
    const absl::Status status = ParsePatched(config, patch).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << patch;
    EXPECT_EQ(status.message(), std::string("DIR/config.json: ") + message);
  }
}

TEST(HuggingFaceConfigTest, EverythingThatIsMissingIsNamed) {
  EXPECT_EQ(ParsePatched(kQwen3, R"({"hidden_size": null, "vocab_size": null, "rope_theta": null,
                                     "head_dim": null})")
                .status()
                .message(),
            "DIR/config.json lacks hidden_size, vocab_size, rope_theta, head_dim");
  EXPECT_EQ(ParsePatched(kGlm4Moe, R"({"first_k_dense_replace": null, "n_routed_experts": null})")
                .status()
                .message(),
            "DIR/config.json lacks first_k_dense_replace, n_routed_experts");
  for (const char* text : {"", "[1]", "{"}) {
    EXPECT_EQ(ParseHuggingFaceConfig(text, "DIR/config.json").status().message(),
              "DIR/config.json is not a JSON object");
  }
}

ModelConfig Model(std::vector<PlanSegment> segments) {
  ModelConfig model;
  model.d = 32;
  model.heads = 6;
  model.kv_heads = 3;
  model.head_dim = 10;
  model.ffn = 48;
  model.vocabulary = 300;
  model.theta = 54321.25;
  model.eps = 3e-6;
  model.experts = 5;
  model.routed = 3;
  model.shared = 1;
  model.expert_ffn = 12;
  model.plan = MakeLayerPlan(std::move(segments), 0);
  return model;
}

const LayerSpec kExperts = {.experts = true};

TEST(HuggingFaceConfigTest, WhatIsWrittenIsReadBack) {
  const struct {
    std::vector<PlanSegment> plan;
    const char* architecture;
    const char* read;
  } kCases[] = {
      {{{.repeat = 3}}, "Qwen3ForCausalLM", "3*D"},
      {{{.repeat = 2, .layer = kExperts}}, "Glm4MoeForCausalLM", "2*E"},
      {{{.group = {{.repeat = 1}, {.repeat = 1}}}, {.layer = kExperts}},
       "Glm4MoeForCausalLM",
       "2*D + E"},
  };
  for (const auto& [plan, architecture, read] : kCases) {
    const ModelConfig model = Model(plan);
    const auto text = MakeHuggingFaceConfig(model, 77, DType::kBFloat16);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(json::parse(*text)["architectures"], json::array({architecture}));
    EXPECT_EQ(json::parse(*text)["dtype"], "bfloat16");
    EXPECT_EQ(json::parse(*text)["torch_dtype"], "bfloat16");
    const auto config = ParseHuggingFaceConfig(*text, "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->positions, 77);
    EXPECT_FALSE(config->tied);
    EXPECT_EQ(config->model.d, model.d);
    EXPECT_EQ(config->model.heads, model.heads);
    EXPECT_EQ(config->model.kv_heads, model.kv_heads);
    EXPECT_EQ(config->model.head_dim, model.head_dim);
    EXPECT_EQ(config->model.vocabulary, model.vocabulary);
    EXPECT_EQ(config->model.theta, model.theta);
    EXPECT_EQ(config->model.eps, model.eps);
    EXPECT_EQ(ShortForm(config->model.plan.segments), read);
    EXPECT_EQ(config->model.ffn, model.ffn);
    if (!model.plan.has_experts()) continue;
    EXPECT_EQ(config->model.experts, model.experts);
    EXPECT_EQ(config->model.routed, model.routed);
    EXPECT_EQ(config->model.shared, model.shared);
    EXPECT_EQ(config->model.expert_ffn, model.expert_ffn);
  }
}

TEST(HuggingFaceConfigTest, PlansOfOtherModelsAreRefused) {
  const LayerSpec sparse = {.kind = LayerKind::kSparse, .sparsity = 4};
  const std::pair<std::vector<PlanSegment>, const char*> kCases[] = {
      {{{.repeat = 3}, {.layer = sparse}}, "3*D + S4"},
      {{{.layer = kExperts}, {.repeat = 2}}, "E + 2*D"},
      {{{.layer = {.kind = LayerKind::kSparse, .sparsity = 2, .experts = true}}}, "SE2"}};
  for (const auto& [plan, text] : kCases) {
    const absl::Status status = MakeHuggingFaceConfig(Model(plan), 8, DType::kFloat32).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(status.message(),
              std::string("Hugging Face has no model for the plan ") + text +
                  ", only for dense layers, mixtures of experts, and the first followed by the "
                  "second: use --format checkpoint");
  }
}

TEST(HuggingFaceConfigTest, ExpertsOfOtherModelsAreRefused) {
  ModelConfig model = Model({{.layer = kExperts}});
  model.scoring = Scoring::kSoftmax;
  EXPECT_EQ(
      MakeHuggingFaceConfig(model, 8, DType::kFloat32).status().message(),
      "model.scoring is SOFTMAX, but Glm4MoeForCausalLM has SIGMOID: use --format checkpoint");
  model = Model({{.layer = kExperts}});
  model.experts = 1;
  EXPECT_EQ(MakeHuggingFaceConfig(model, 8, DType::kFloat32).status().message(),
            "model.experts is 1, but Glm4MoeForCausalLM needs at least 2: use --format checkpoint");
}

}  // namespace
}  // namespace fathom
