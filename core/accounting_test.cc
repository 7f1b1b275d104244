#include "core/accounting.h"

#include <bit>
#include <cmath>
#include <map>
#include <vector>

#include "gtest/gtest.h"

namespace fathom {
namespace {

constexpr int64_t kLength = 32768;

ModelConfig Model(const std::string& name) {
  const auto job = ReadJob("launch/jobs/" + name + ".txtpb", {});
  EXPECT_TRUE(job.ok()) << job.status().message();
  return job.ok() ? job->model : ModelConfig();
}

// Parameters as published tables count them: without norms, depth routers and depth scales.
int64_t MatrixParameters(const ModelConfig& model) {
  int64_t count = 0;
  for (const CountedParameter& parameter : EnumerateParameters(model)) {
    if (parameter.dims.size() == 2) count += parameter.elements();
  }
  return count;
}

struct Row {
  std::string name;
  double billion_parameters;
  double gigaflops;
};

TEST(AccountingTest, MatchesThePublishedSizesAndCosts) {
  const Row rows[] = {
      {"556m_dense", 0.543, 8.397},      {"556m_mod", 0.874, 7.692},
      {"556m_xmod_a4k8", 2.635, 3.934},  {"556m_xmod_a3k16", 4.790, 3.867},
      {"936m_dense", 0.914, 9.036},      {"936m_mod", 1.484, 8.331},
      {"936m_xmod_a4k8", 4.523, 4.573},  {"936m_xmod_a3k16", 8.240, 4.506},
      {"1650m_dense", 1.615, 10.335},    {"1650m_mod", 2.672, 9.630},
      {"1650m_xmod_a4k8", 8.309, 5.872}, {"1650m_xmod_a3k16", 15.205, 5.805},
      {"556m_moe_8_64", 2.461, 8.397},   {"556m_moe_8_128", 4.577, 8.397},
      {"936m_moe_8_64", 4.509, 9.036},   {"936m_moe_8_128", 8.475, 9.036},
      {"1650m_moe_8_64", 9.282, 10.335}, {"1650m_moe_8_128", 17.741, 10.335},
  };
  for (const Row& row : rows) {
    const ModelConfig model = Model(row.name);
    // Half of the last printed digit.
    EXPECT_NEAR(static_cast<double>(MatrixParameters(model)) / 1e9, row.billion_parameters, 5.01e-4)
        << row.name;
    EXPECT_NEAR(CountFlopsPerToken(model, kLength).paper_forward / 1e9, row.gigaflops, 5.01e-4)
        << row.name;
    // What the tables leave out adds up to little.
    const double total = static_cast<double>(CountParameters(model).total);
    EXPECT_GT(total, static_cast<double>(MatrixParameters(model)));
    EXPECT_LT(total, static_cast<double>(MatrixParameters(model)) * 1.0003) << row.name;
  }
}

TEST(AccountingTest, DeepModelsHaveThePublishedRatios) {
  const ModelConfig dense = Model("165m_deep_dense");
  EXPECT_NEAR(static_cast<double>(MatrixParameters(dense)) / 1e6, 256, 0.5);
  const double base = CountFlopsPerToken(dense, kLength).paper_forward;
  const std::map<std::string, double> ratios = {{"165m_deep_a1k4", 0.673},
                                                {"165m_deep_a1k8", 0.619},
                                                {"165m_deep_a1k12", 0.600},
                                                {"165m_deep_a1k16", 0.591}};
  for (const auto& [name, ratio] : ratios) {
    EXPECT_NEAR(CountFlopsPerToken(Model(name), kLength).paper_forward / base, ratio, 5.01e-4)
        << name;
  }
}

TEST(AccountingTest, SparseModelsAreAsMuchCheaperAsPublished) {
  const double dense = CountFlopsPerToken(Model("936m_dense"), kLength).exact_training;
  EXPECT_NEAR(dense / CountFlopsPerToken(Model("936m_xmod_a4k8"), kLength).exact_training, 1.70,
              0.005);
  EXPECT_NEAR(dense / CountFlopsPerToken(Model("936m_xmod_a3k16"), kLength).exact_training, 1.71,
              0.005);
}

// Counts multiplications and additions one by one, as the layers execute them.
double CountByLoops(const ModelConfig& model, int64_t length) {
  double flops = 0;
  for (const PlannedLayer& layer : model.plan.layers) {
    const bool sparse = layer.spec.kind == LayerKind::kSparse;
    for (int64_t token = 0; sparse && token < length; ++token) flops += 2.0 * model.d;
    for (int64_t row = 0; row < length / layer.spec.sparsity; ++row) {
      flops += 2.0 * model.d * model.heads * model.head_dim * 2;     // q, o
      flops += 2.0 * model.d * model.kv_heads * model.head_dim * 2;  // k, v
      if (layer.spec.experts) {
        for (int64_t expert = 0; expert < model.experts; ++expert) flops += 2.0 * model.d;
        for (int64_t expert = 0; expert < model.routed + model.shared; ++expert) {
          flops += 2.0 * model.d * model.expert_ffn * 3;
        }
      } else {
        flops += 2.0 * model.d * model.ffn * 3;  // gate, up, down
      }
      for (int64_t key = 0; key <= row; ++key) {
        for (int64_t head = 0; head < model.heads; ++head) flops += 4.0 * model.head_dim;
      }
    }
  }
  for (int64_t token = 0; token < length; ++token) flops += 2.0 * model.d * model.vocabulary;
  return flops / static_cast<double>(length);
}

TEST(AccountingTest, ExactCountIsThatOfTheLoops) {
  for (const std::string name :
       {"toy_dense", "toy_mod", "toy_xmod", "toy_moe", "toy_moe_xmod", "quickstart"}) {
    const ModelConfig model = Model(name);
    for (const int64_t length : {16, 30, 257}) {  // K divides, and does not
      const FlopsPerToken flops = CountFlopsPerToken(model, length);
      const double loops = CountByLoops(model, length);
      EXPECT_NEAR(flops.exact_forward / loops, 1, 1e-12) << name << " " << length;
      EXPECT_NEAR(flops.exact_training / loops, 3, 1e-12) << name << " " << length;
    }
  }
}

double Pairs(const std::vector<int64_t>& lengths) {
  double pairs = 0;
  for (const int64_t length : lengths) pairs += static_cast<double>(length * (length + 1) / 2);
  return pairs;
}

TEST(AccountingTest, SelectedPairsAreTheMeanOverAllSelections) {
  const std::vector<std::vector<int64_t>> packings = {
      {10}, {3, 1, 6}, {5, 5}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1}};
  for (const std::vector<int64_t>& lengths : packings) {
    std::vector<size_t> document_of;
    for (size_t d = 0; d < lengths.size(); ++d) {
      document_of.insert(document_of.end(), lengths[d], d);
    }
    const int64_t length = document_of.size();
    std::map<int64_t, double> pairs, selections;  // by k
    for (uint32_t chosen = 0; chosen < 1u << length; ++chosen) {
      const int64_t k = std::popcount(chosen);
      ++selections[k];
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t j = 0; j <= i; ++j) {
          const bool both = (chosen >> i & 1) != 0 && (chosen >> j & 1) != 0;
          pairs[k] += both && document_of[i] == document_of[j];
        }
      }
    }
    for (int64_t k = 0; k <= length; ++k) {
      EXPECT_NEAR(SelectedPairs(Pairs(lengths), length, k), pairs[k] / selections[k], 1e-12)
          << lengths.size() << " documents, k " << k;
    }
  }
}

TEST(AccountingTest, DocumentsByHand) {
  // d 8, H*h 4, G*h 2, F 6, V 10; layers D and S2; L = 8 as documents of 5 and 3.
  ModelConfig model;
  model.d = 8;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 2;
  model.ffn = 6;
  model.vocabulary = 10;
  model.plan = MakeLayerPlan({{.repeat = 1, .layer = {LayerKind::kDense, 1}, .group = {}},
                              {.repeat = 1, .layer = {LayerKind::kSparse, 2}, .group = {}}},
                             model.reset_every);
  // Each token: 2 * (8*4 + 8*2 + 8*2 + 4*8 + 3*8*6) = 480 of linear work, 160 of the head, and 16
  // of the router. A pair: for 2 heads of 2 dimensions 2 multiply-adds each, 16.
  // 15 + 6 = 21 pairs of 8 tokens, 13 of them of different tokens. Of these, 4 selected of 8 keep
  // 4*3 / (8*7) = 3/14, so 4 + 13 * 3/14 pairs.
  const double documents =
      8 * 480 + 16 * 21 + 8 * 16 + 4 * 480 + 16 * (4 + 13 * 3 / 14.0) + 8 * 160;
  EXPECT_NEAR(CountFlopsPerToken(model, 8, 21).exact_forward, documents / 8, 1e-12);
  EXPECT_NEAR(CountFlopsPerToken(model, 8, 21).exact_training, 3 * documents / 8, 1e-12);
  // One document: 36 pairs, and 10 of the selected.
  const double whole = 8 * 480 + 16 * 36 + 8 * 16 + 4 * 480 + 16 * 10 + 8 * 160;
  EXPECT_EQ(CountFlopsPerToken(model, 8).exact_forward, whole / 8);
}

TEST(AccountingTest, OneDocumentIsTheWholeSequence) {
  for (const int64_t length : {1, 2, 257, 4096, 32768, 1000003}) {
    for (const int64_t sparsity : {1, 2, 3, 7, 16}) {
      const int64_t k = length / sparsity;
      EXPECT_EQ(SelectedPairs(Pairs({length}), length, k), k * (k + 1) / 2) << length << " " << k;
    }
  }
  for (const std::string name : {"toy_xmod", "936m_dense", "936m_xmod_a4k8", "1650m_xmod_a3k16"}) {
    const ModelConfig model = Model(name);
    for (const int64_t length : {257, 4096, 32768, 1000003}) {
      const FlopsPerToken one = CountFlopsPerToken(model, length, Pairs({length}));
      const FlopsPerToken whole = CountFlopsPerToken(model, length);
      EXPECT_EQ(one.exact_forward, whole.exact_forward) << name << " " << length;
      EXPECT_EQ(one.exact_training, whole.exact_training) << name << " " << length;
      const FlopsPerToken two = CountFlopsPerToken(model, length, Pairs({length / 2, length / 2}));
      EXPECT_LT(two.exact_training, whole.exact_training);
      EXPECT_EQ(two.paper_forward, whole.paper_forward);
    }
  }
}

TEST(AccountingTest, CountsEverythingThatExists) {
  // toy_xmod, 2*D + 2*(2*S4 + D), by hand: d 64, H*h 128, G*h 64, h 8, F 192, V 257.
  const int64_t dense = 64 * (128 + 64 + 64 + 128) + 3 * 64 * 192 + 2 * 64 + 2 * 8;
  const int64_t router_and_scale = 64 + 1;
  const int64_t rest = 2 * 257 * 64 + 64;
  const ParameterCounts xmod = CountParameters(Model("toy_xmod"));
  EXPECT_EQ(xmod.total, 8 * dense + 4 * router_and_scale + rest);
  EXPECT_EQ(xmod.active, 4 * dense + (dense + router_and_scale) + rest);
  // toy_mod, D + 2*(S4 + D), has no scale.
  const ParameterCounts mod = CountParameters(Model("toy_mod"));
  EXPECT_EQ(mod.total, 5 * dense + 2 * 64 + rest);
  EXPECT_EQ(mod.active, std::llround(3 * dense + 2 * (dense + 64) / 4.0 + rest));
  EXPECT_EQ(CountParameters(Model("toy_dense")).total, 4 * dense + rest);
}

TEST(AccountingTest, CountsExpertsByHand) {
  // toy_moe, 4*E: d 64, H*h 128, G*h 64, h 8, 8 experts of width 24, 2 of them for each token, 2
  // shared.
  const int64_t attention = 64 * (128 + 64 + 64 + 128) + 2 * 64 + 2 * 8;
  const int64_t gate_and_bias = 8 * 64 + 8;
  const int64_t expert = 3 * 64 * 24;
  const int64_t rest = 2 * 257 * 64 + 64;
  const ParameterCounts moe = CountParameters(Model("toy_moe"));
  EXPECT_EQ(moe.total, 4 * (attention + gate_and_bias + 10 * expert) + rest);
  EXPECT_EQ(moe.active, 4 * (attention + gate_and_bias + 4 * expert) + rest);
  // toy_moe_xmod, D + 2*(S4 + SE4 + E), with F 192.
  const int64_t ffn = 3 * 64 * 192;
  const int64_t router_and_scale = 64 + 1;
  const ParameterCounts mixed = CountParameters(Model("toy_moe_xmod"));
  EXPECT_EQ(mixed.total, 7 * attention + 3 * ffn + 4 * (gate_and_bias + 10 * expert) +
                             4 * router_and_scale + rest);
  EXPECT_EQ(mixed.active,
            std::llround(4 * attention + 1.5 * ffn + 2.5 * (gate_and_bias + 4 * expert) +
                         router_and_scale + rest));
}

TEST(AccountingTest, NamesTheParametersOfAMixtureInOrder) {
  ModelConfig model = Model("toy_moe_xmod");
  model.experts = 2;
  model.routed = 1;
  const auto names_of = [&](const std::string& prefix) {
    std::vector<std::string> names;
    for (const CountedParameter& parameter : EnumerateParameters(model)) {
      if (!parameter.name.starts_with(prefix)) continue;
      names.push_back(parameter.name.substr(prefix.size()));
    }
    return names;
  };
  const std::vector<std::string> attention = {
      "input_layernorm.weight",  "self_attn.q_proj.weight",        "self_attn.k_proj.weight",
      "self_attn.v_proj.weight", "self_attn.q_norm.weight",        "self_attn.k_norm.weight",
      "self_attn.o_proj.weight", "post_attention_layernorm.weight"};
  const std::vector<std::string> gate = {"mlp.gate.weight", "mlp.gate.e_score_correction_bias"};
  const std::vector<std::string> shared = {"mlp.shared_experts.gate_proj.weight",
                                           "mlp.shared_experts.up_proj.weight",
                                           "mlp.shared_experts.down_proj.weight"};
  const std::vector<std::string> experts = {
      "mlp.experts.0.gate_proj.weight", "mlp.experts.0.up_proj.weight",
      "mlp.experts.0.down_proj.weight", "mlp.experts.1.gate_proj.weight",
      "mlp.experts.1.up_proj.weight",   "mlp.experts.1.down_proj.weight"};
  std::vector<std::string> expected;  // of a layer of kind E
  for (const auto& part : {attention, gate, shared, experts}) {
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(names_of("model.layers.3."), expected);
  expected.insert(expected.begin(), "depth_router.weight");
  expected.push_back("depth_scale");
  EXPECT_EQ(names_of("model.layers.2."), expected);

  std::map<std::string, CountedParameter> parameters;
  for (const CountedParameter& parameter : EnumerateParameters(model)) {
    EXPECT_TRUE(parameters.emplace(parameter.name, parameter).second) << parameter.name;
  }
  const CountedParameter& up = parameters.at("model.layers.2.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(up.dims, (std::vector<int64_t>{24, 64}));
  EXPECT_EQ(up.share, 0.125);  // half of the experts for a quarter of the tokens
  EXPECT_EQ(parameters.at("model.layers.3.mlp.shared_experts.down_proj.weight").dims,
            (std::vector<int64_t>{64, 48}));
  EXPECT_EQ(parameters.at("model.layers.3.mlp.gate.weight").dims, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(parameters.at("model.layers.3.mlp.gate.e_score_correction_bias").dims,
            (std::vector<int64_t>{2}));
  model.shared = 0;
  EXPECT_EQ(names_of("model.layers.3.mlp.shared_experts"), std::vector<std::string>());
}

TEST(AccountingTest, LayersWithExpertsCostWhatTheyDo) {
  const ModelConfig model = Model("toy_moe_xmod");
  const LayerFlops flops = CountLayerFlops(model, 128);
  ASSERT_EQ(flops.layers.size(), 7u);
  // D has one FFN of 192, E of 4 * 24, and a gate of 8 columns: per token 2 * 64 for each column.
  EXPECT_NEAR(flops.layers[0] - flops.layers[3], 2.0 * 64 * (3 * 192 - 3 * 96 - 8), 1e-9);
  EXPECT_NEAR(flops.layers[1] - flops.layers[2], 2.0 * 64 * (3 * 192 - 3 * 96 - 8) / 4, 1e-9);
}

TEST(AccountingTest, NamesEveryParameterOnce) {
  std::map<std::string, CountedParameter> parameters;
  for (const CountedParameter& parameter : EnumerateParameters(Model("toy_xmod"))) {
    EXPECT_TRUE(parameters.emplace(parameter.name, parameter).second) << parameter.name;
  }
  // 8 layers of 11, 4 routers and scales, embedding, norm, head.
  EXPECT_EQ(parameters.size(), 8 * 11 + 4 * 2 + 3);
  const CountedParameter& scale = parameters.at("model.layers.2.depth_scale");
  EXPECT_TRUE(scale.dims.empty());
  EXPECT_EQ(scale.elements(), 1);
  EXPECT_EQ(scale.share, 0.25);
  EXPECT_EQ(parameters.at("model.layers.0.self_attn.k_proj.weight").dims,
            (std::vector<int64_t>{64, 64}));
  EXPECT_EQ(parameters.at("model.layers.7.self_attn.o_proj.weight").dims,
            (std::vector<int64_t>{64, 128}));
  EXPECT_EQ(parameters.count("model.layers.4.depth_scale"), 0);
}

}  // namespace
}  // namespace fathom
