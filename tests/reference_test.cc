// The model and the optimizers against the PyTorch program in tests/reference: losses, gradients by
// position, three updates, selections, and evaluation under both routings.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/cpu_device.h"
#include "core/file.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/language_model.h"
#include "runtime/model/expert_names.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSteps = 3;

std::string GoldenPath(const std::string& name, const std::string& file) {
  return "tests/reference/goldens/" + name + "/" + file;
}

Json ReadGolden(const std::string& name, const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), GoldenPath(name, file));
  FATHOM_CHECK(text.ok()) << text.status().message();
  return Json::parse(*text);
}

// All tensors of a golden file as doubles (integers too).
std::map<std::string, std::vector<double>> ReadTensors(const std::string& name,
                                                       const std::string& file) {
  const auto opened = SafetensorsFile::Open(PosixFileSystem(), GoldenPath(name, file));
  FATHOM_CHECK(opened.ok()) << opened.status().message();
  std::map<std::string, std::vector<double>> tensors;
  for (const NamedArray& array : (*opened)->tensors()) {
    std::vector<double>& values = tensors[array.name];
    values.resize(array.shape.elements());
    if (array.dtype == DType::kInt64) {
      std::vector<int64_t> integers(values.size());
      std::memcpy(integers.data(), array.data, array.bytes());
      std::copy(integers.begin(), integers.end(), values.begin());
    } else {
      FATHOM_CHECK(array.dtype == DType::kFloat64) << array.name;
      std::memcpy(values.data(), array.data, array.bytes());
    }
  }
  return tensors;
}

ModelConfig ConfigOf(const Json& job) {
  const Json& model = job["model"];
  ModelConfig config;
  config.d = model["d"];
  config.heads = model["heads"];
  config.kv_heads = model["kv_heads"];
  config.head_dim = model["head_dim"];
  config.ffn = model["ffn"];
  config.vocabulary = model["vocabulary"];
  config.theta = model["theta"];
  config.eps = model["eps"];
  config.gate =
      std::map<std::string, Gate>{{"XMOD", Gate::kXMod}, {"MOD", Gate::kMod}, {"NONE", Gate::kNone}}
          .at(model["gate"]);
  config.alignment = model["alignment"] == "RAW" ? Alignment::kRaw : Alignment::kBiased;
  config.tau = model["tau"];
  config.increment = model["increment"];
  config.routing_coefficient = model["routing_coefficient"];
  config.reset_every = model["reset_every"];
  config.experts = model["experts"];
  config.routed = model["routed"];
  config.shared = model["shared"];
  config.expert_ffn = model["expert_ffn"];
  config.scoring = model["scoring"] == "SOFTMAX" ? Scoring::kSoftmax : Scoring::kSigmoid;
  config.balance_coefficient = model["balance_coefficient"];
  config.expert_bias_rate = model["expert_bias_rate"];
  std::vector<PlanSegment> segments;
  for (const Json& layer : job["layers"]) {
    const bool dense = layer["kind"] == "D";
    segments.push_back({.repeat = 1,
                        .layer = {dense ? LayerKind::kDense : LayerKind::kSparse,
                                  layer["sparsity"].get<int64_t>(), layer["experts"].get<bool>()},
                        .group = {}});
  }
  config.plan = MakeLayerPlan(segments, config.reset_every);
  return config;
}

OptimizerConfig OptimizerOf(const Json& job) {
  const Json& optimizer = job["optimizer"];
  OptimizerConfig config;
  config.muon = optimizer["kind"] == "MUON";
  config.learning_rate = optimizer["learning_rate"];
  config.weight_decay = optimizer["weight_decay"];
  config.clip = optimizer["clip"];
  config.momentum = optimizer["momentum"];
  config.newton_schulz_steps = optimizer["newton_schulz_steps"];
  config.beta1 = optimizer["beta1"];
  config.beta2 = optimizer["beta2"];
  config.epsilon = optimizer["epsilon"];
  return config;
}

std::vector<double> ToHost(const Tensor& tensor) {
  std::vector<double> values(tensor.elements());
  ConvertElements(tensor.raw(), tensor.dtype(), values.data(), DType::kFloat64, values.size());
  return values;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

// max|a - b| / max|b|. A tensor b of smaller norm than `floor_norm` counts as one of that norm
// whose elements are all of one size: such sums mostly cancel.
double RelativeDifference(const std::vector<double>& a, const std::vector<double>& b,
                          double floor_norm) {
  FATHOM_CHECK_EQ(a.size(), b.size());
  double gap = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i])) return INFINITY;
    gap = std::max(gap, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  if (Norm(b) < floor_norm) largest = floor_norm / std::sqrt(static_cast<double>(b.size()));
  if (gap == 0) return 0;
  return largest > 0 ? gap / largest : INFINITY;
}

double GradientFloor(const Parameter& parameter) {
  switch (parameter.spec.role) {
    case ParameterRole::kScale:
      return 1e-2;
    case ParameterRole::kRouter:
      return parameter.spec.name.ends_with("depth_router.weight") ? 1e-3 : 1e-4;
    default:
      return 1e-4;
  }
}

// By a gradient: the selection bias of experts moves by a rule of its own.
bool IsTrained(const Parameter& parameter) {
  return parameter.spec.role != ParameterRole::kExpertBias;
}

// A golden case, run by Fathom in one precision.
class ReferenceCase {
 public:
  ReferenceCase(const std::string& name, DType dtype)
      : name_(name), job_(ReadGolden(name, "job.json")), device_(2) {
    length_ = job_["train"]["sequence_length"];
    auto model = LanguageModel::Create(ConfigOf(job_),
                                       {.dtype = dtype, .length = length_, .with_gradients = true},
                                       *groups_, device_);
    FATHOM_CHECK(model.ok());
    model_ = *std::move(model);
    auto optimizer = Optimizer::Create(OptimizerOf(job_), {}, model_->parameters(), *groups_,
                                       device_, model_->stream());
    FATHOM_CHECK(optimizer.ok());
    optimizer_ = *std::move(optimizer);
    tokens_ = ReadTensors(name, "tokens.safetensors");
    LoadWeightsOf(0);
  }

  void LoadWeightsOf(int64_t step) {
    const auto file = SafetensorsFile::Open(
        PosixFileSystem(), GoldenPath(name_, absl::StrCat("weights_", step, ".safetensors")));
    FATHOM_CHECK(file.ok());
    const absl::Status status = LoadWeights(**file, ParameterNames(model_->config()),
                                            model_->parameters(), model_->stream());
    FATHOM_CHECK(status.ok()) << status.message();
  }

  HostBatch Batch(int64_t step) const {
    const auto& ids = tokens_.at(absl::StrCat("input_ids.", step));
    const auto& labels = tokens_.at(absl::StrCat("labels.", step));
    HostBatch batch = HostBatch::WholeSequences(ids.size() / length_, length_);
    std::copy(ids.begin(), ids.end(), batch.tokens.begin());
    std::copy(labels.begin(), labels.end(), batch.labels.begin());
    const auto documents = tokens_.find(absl::StrCat("document_ids.", step));
    if (documents != tokens_.end()) SeparateDocuments(documents->second, &batch);
    return batch;
  }

  // Segments and positions of documents, whose number rises within a sequence.
  static void SeparateDocuments(const std::vector<double>& ids, HostBatch* batch) {
    batch->segments.clear();
    for (int32_t i = 0; i < static_cast<int32_t>(ids.size()); ++i) {
      if (i % batch->length == 0 || ids[i] != ids[i - 1]) batch->segments.push_back(i);
      batch->positions[i] = i - batch->segments.back();
    }
    batch->segments.push_back(static_cast<int32_t>(ids.size()));
  }

  struct Outcome {
    double loss, auxiliary_loss, gradient_norm, learning_rate;
    std::map<std::string, std::vector<double>> gradients;  // by parameter, before the update
    std::map<std::string, std::vector<double>> selections;
  };

  // One step of training; `replay`: with the reference's selection instead of the model's own.
  Outcome Step(int64_t step, bool replay) {
    Arena& arena = model_->arena();
    Stream& stream = model_->stream();
    ArenaScope scope(arena);
    const HostBatch host = Batch(step);
    const double tokens = host.tokens.size();
    const double labels = std::count_if(host.labels.begin(), host.labels.end(),
                                        [](int32_t label) { return label >= 0; });
    const MicroBatch batch = Upload(host, stream, arena);
    Pass pass = model_->stage().NewPass(stream, arena, batch);
    pass.training = true;
    pass.auxiliary_weight = model_->config().routing_coefficient / tokens;
    pass.balance_weight = model_->config().balance_coefficient / host.sequences;
    if (replay) Replay(step, &pass);

    Launch(stream, Fill{.value = 0, .y = model_->parameters().gradients()});
    const Tensor losses = arena.New(StatisticsDType(model_->dtype()), {batch.rows()});
    const Tensor sums = arena.New(DType::kFloat64, {3});
    Launch(stream, Fill{.value = 0, .y = sums});
    model_->stage().Forward(pass, batch);
    model_->stage().Loss(pass, batch, 1 / labels, losses);
    Launch(stream, Sum{.x = losses, .factor = 1 / labels, .sum = sums.Rows(0, 1)});
    Launch(stream, Sum{.x = pass.auxiliary_loss, .sum = sums.Rows(1, 2)});
    Launch(stream, Sum{.x = pass.auxiliary_part, .sum = sums.Rows(1, 2)});
    Outcome outcome;
    outcome.selections = Selections(pass);
    model_->stage().Backward(pass, batch);
    for (const Parameter& parameter : model_->parameters().all()) {
      if (!IsTrained(parameter)) continue;
      outcome.gradients[parameter.spec.name] = ToHost(parameter.gradient);
    }
    outcome.learning_rate =
        LearningRate(ScheduleConfig(), job_["optimizer"]["learning_rate"], step, kSteps);
    const absl::Status updated = optimizer_->Step(stream, arena, outcome.learning_rate, sums);
    FATHOM_CHECK(updated.ok()) << updated;
    outcome.loss = sums.data<double>()[0];
    outcome.auxiliary_loss = sums.data<double>()[1];
    outcome.gradient_norm = optimizer_->step().data<double>()[kGradientNorm];
    return outcome;
  }

  // Losses of the first step's tokens, without gradients.
  std::vector<double> Evaluate(Routing routing, std::vector<int32_t>* selected) {
    Arena& arena = model_->arena();
    ArenaScope scope(arena);
    const HostBatch host = Batch(1);
    const MicroBatch batch = Upload(host, model_->stream(), arena);
    Pass pass = model_->stage().NewPass(model_->stream(), arena, batch);
    pass.routing = routing;
    const Tensor losses = arena.New(StatisticsDType(model_->dtype()), {batch.rows()});
    model_->stage().Forward(pass, batch);
    model_->stage().Loss(pass, batch, 0, losses);
    selected->assign(pass.selected.data<int32_t>(),
                     pass.selected.data<int32_t>() + pass.selected.elements());
    return ToHost(losses);
  }

  bool Recorded(const char* kind, int64_t step) const {
    const Json& steps = job_["recorded"][kind];
    return std::find(steps.begin(), steps.end(), step) != steps.end();
  }

  const Json& job() const { return job_; }
  LanguageModel& model() { return *model_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const std::string& name() const { return name_; }

 private:
  // What the reference recorded as selected in `step`. It counts positions within a sequence,
  // passes count rows of the micro-batch.
  void Replay(int64_t step, Pass* pass) {
    if (!Selects()) return;
    const auto tensors = ReadTensors(name_, absl::StrCat("selection_", step, ".safetensors"));
    const ModelConfig& config = model_->config();
    const auto& layers = config.plan.layers;
    pass->replay.resize(layers.size());
    pass->expert_replay.resize(layers.size());
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const auto tokens = tensors.find(SelectionName(layer));
      if (tokens != tensors.end()) {
        const int64_t k = length_ / layers[layer].spec.sparsity;
        std::vector<int32_t> rows;
        for (size_t i = 0; i < tokens->second.size(); ++i) {
          rows.push_back(static_cast<int32_t>(tokens->second[i]) + i / k * length_);
        }
        pass->replay[layer] = UploadRows(rows, {static_cast<int64_t>(rows.size())});
      }
      const auto experts = tensors.find(ExpertSelectionName(layer));
      if (experts != tensors.end()) {
        const std::vector<int32_t> chosen(experts->second.begin(), experts->second.end());
        const int64_t rows = chosen.size() / config.routed;
        pass->expert_replay[layer] = UploadRows(chosen, {rows, config.routed});
      }
    }
  }

  Tensor UploadRows(const std::vector<int32_t>& rows, const Shape& shape) {
    const Tensor tensor = model_->arena().New(DType::kInt32, shape);
    model_->stream().CopyToDevice(rows.data(), tensor);
    return tensor;
  }

  std::map<std::string, std::vector<double>> Selections(const Pass& pass) const {
    std::map<std::string, std::vector<double>> selections;
    for (const LayerSelection& selection : pass.selections) {
      const Tensor& index = selection.index;
      for (int64_t i = 0; i < index.elements(); ++i) {
        selections[SelectionName(selection.layer)].push_back(index.data<int32_t>()[i] % length_);
      }
    }
    for (const LayerExperts& layer : pass.experts) {
      const int32_t* experts = layer.experts.data<int32_t>();
      selections[ExpertSelectionName(layer.layer)].assign(experts,
                                                          experts + layer.experts.elements());
    }
    return selections;
  }

  // Whether a layer selects tokens or experts.
  bool Selects() const {
    for (const PlannedLayer& layer : model_->config().plan.layers) {
      if (layer.spec.kind == LayerKind::kSparse || layer.spec.experts) return true;
    }
    return false;
  }

  static std::string SelectionName(size_t layer) {
    return absl::StrCat("model.layers.", layer, ".depth_selection");
  }

  std::string name_;
  Json job_;
  CpuDevice device_;
  int64_t length_ = 0;
  std::unique_ptr<RankGroups> groups_ = RankGroups::Alone();
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::map<std::string, std::vector<double>> tokens_;
};

void ExpectGradients(ReferenceCase& run, const ReferenceCase::Outcome& outcome, int64_t step,
                     double tolerance, bool floors) {
  const auto expected = ReadTensors(run.name(), absl::StrCat("gradients_", step, ".safetensors"));
  double all = 0;
  for (const auto& [name, values] : expected) all += Norm(values) * Norm(values);
  all = std::sqrt(all);
  size_t compared = 0;
  for (const Parameter& parameter : run.model().parameters().all()) {
    if (!IsTrained(parameter)) continue;
    const auto found = expected.find(parameter.spec.name);
    ASSERT_NE(found, expected.end()) << parameter.spec.name;
    const double floor = floors ? GradientFloor(parameter) * all : 0;
    const std::vector<double>& gradient = outcome.gradients.at(parameter.spec.name);
    EXPECT_LE(RelativeDifference(gradient, found->second, floor), tolerance) << parameter.spec.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

void ExpectWeights(ReferenceCase& run, int64_t step, double tolerance) {
  const auto expected = ReadTensors(run.name(), absl::StrCat("weights_", step, ".safetensors"));
  for (const Parameter& parameter : run.model().parameters().all()) {
    EXPECT_LE(RelativeDifference(ToHost(parameter.weight), expected.at(parameter.spec.name), 0),
              tolerance)
        << "after step " << step << ": " << parameter.spec.name;
  }
}

void ExpectOptimizerState(ReferenceCase& run, double tolerance) {
  const auto expected = ReadTensors(run.name(), "optimizer_3.safetensors");
  size_t compared = 0;
  for (const Optimizer::StateTensor& state : run.optimizer().state()) {
    const auto found = expected.find(state.name);
    ASSERT_NE(found, expected.end()) << state.name;
    EXPECT_LE(RelativeDifference(ToHost(state.tensor), found->second, 0), tolerance) << state.name;
    ++compared;
  }
  EXPECT_EQ(compared, expected.size());
}

class Reference : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Cases, Reference,
                         ::testing::Values("dense", "mod", "xmod", "xmod_raw", "xmod_none",
                                           "xmod_no_bias", "xmod_tau", "xmod_no_prefix",
                                           "xmod_no_anchor", "xmod_adamw", "xmod_no_auxiliary",
                                           "xmod_documents", "moe", "moe_softmax", "moe_plain",
                                           "moe_xmod", "moe_documents"),
                         [](const auto& info) { return info.param; });

TEST_P(Reference, ThreeStepsInFp64) {
  ReferenceCase run(GetParam(), DType::kFloat64);
  constexpr double kTolerance = 1e-9;
  for (int64_t step = 1; step <= kSteps; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    const ReferenceCase::Outcome outcome = run.Step(step, /*replay=*/false);
    const Json expected = ReadGolden(GetParam(), absl::StrCat("step_", step, ".json"));
    EXPECT_NEAR(outcome.loss, expected["loss"], kTolerance);
    EXPECT_NEAR(outcome.auxiliary_loss, expected["auxiliary_loss"], kTolerance);
    const double norm = expected["gradient_norm"];
    EXPECT_NEAR(outcome.gradient_norm, norm, kTolerance * norm);
    EXPECT_DOUBLE_EQ(outcome.learning_rate, expected["learning_rate"]);
    if (!outcome.selections.empty()) {
      EXPECT_EQ(outcome.selections,
                ReadTensors(GetParam(), absl::StrCat("selection_", step, ".safetensors")));
    }
    if (run.Recorded("gradients", step)) ExpectGradients(run, outcome, step, kTolerance, false);
    if (run.Recorded("weights", step)) ExpectWeights(run, step, kTolerance);
  }
  if (run.Recorded("optimizer", kSteps)) ExpectOptimizerState(run, kTolerance);
}

TEST_P(Reference, FirstStepInFp32) {
  ReferenceCase run(GetParam(), DType::kFloat32);
  const ReferenceCase::Outcome outcome = run.Step(1, /*replay=*/true);
  const Json expected = ReadGolden(GetParam(), "step_1.json");
  const double loss = expected["loss"], norm = expected["gradient_norm"];
  EXPECT_NEAR(outcome.loss, loss, 1e-5 * loss);
  EXPECT_NEAR(outcome.gradient_norm, norm, 1e-5 * norm);
  ExpectGradients(run, outcome, 1, 1e-4, true);
}

TEST_P(Reference, EvaluationUnderBothRoutings) {
  ReferenceCase run(GetParam(), DType::kFloat64);
  run.LoadWeightsOf(kSteps);
  const Json evaluation = ReadGolden(GetParam(), "evaluation.json");
  for (const auto& [key, routing] :
       {std::pair{"causal", Routing::kCausal}, std::pair{"top_k", Routing::kTopK}}) {
    std::vector<int32_t> selected;
    const std::vector<double> losses = run.Evaluate(routing, &selected);
    std::vector<double> expected;
    for (const Json& sequence : evaluation[key]["token_losses"]) {
      for (double loss : sequence) expected.push_back(loss);
    }
    EXPECT_LE(RelativeDifference(losses, expected, 0), 1e-9) << key;
    for (const auto& [layer, counts] : evaluation[key]["selected"].items()) {
      int32_t total = 0;
      for (int32_t count : counts) total += count;
      EXPECT_EQ(selected[std::stoi(layer)], total) << key << ", layer " << layer;
    }
  }
}

}  // namespace
}  // namespace fathom
