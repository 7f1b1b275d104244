#include "runtime/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_format.h"
#include "core/cpu_device.h"
#include "core/random.h"
#include "kernels/optimizer.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/data/prepare.h"
#include "runtime/data/token_file.h"
#include "runtime/data/tokenizer.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/faulty_files.h"

namespace fathom {
namespace {

constexpr char kJob[] = R"(
  model {
    d: 32 heads: 4 kv_heads: 2 head_dim: 8 ffn: 48 vocabulary: 257
    routing_coefficient: 0.01
    plan { repeat: 1 dense {} }
    plan { repeat: 2 sparse { sparsity: 4 } }
    plan { repeat: 1 dense {} }
  }
  train {
    steps: 10 sequence_length: 32 micro_batch: 2 global_batch: 4
    validate_every: 5 validation_sequences: 4
  }
)";

// Every kind of layer with experts, whose biases move fast.
const std::vector<std::string>& Experts() {
  static const auto& overrides = *new std::vector<std::string>{
      "model.experts=6",
      "model.routed=2",
      "model.shared=1",
      "model.expert_ffn=10",
      "model.expert_bias_rate=0.02",
      "model.balance_coefficient=0.01",
      "model.plan=[{moe {}}, {sparse {sparsity: 4 experts: true}}, {sparse {sparsity: 4}}, "
      "{moe {}}]"};
  return overrides;
}

std::vector<std::string> With(std::vector<std::string> overrides, const std::string& more) {
  overrides.push_back(more);
  return overrides;
}

// English-like text, so that there is something to learn.
std::string Text(size_t bytes) {
  const std::vector<std::string> words = {"the ", "deep ", "layer ", "sees ", "few ", "tokens. "};
  std::string text;
  for (uint32_t i = 0; text.size() < bytes; ++i) {
    text += words[Philox4x32({i, 0, 0, 0}, {1, 2})[0] % words.size()];
  }
  return text;
}

struct Hooks {
  int64_t stop_after = 0;  // as a signal would, in this step
  std::function<void(int64_t step, const ParameterTable&)> before_update;
};

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() : directory_(NewTestDirectory()) {
    WriteTestFile(JoinPath(directory_, "text.txt"), Text(20000));
  }

  // A run's own overrides come last.
  Job MakeJob(const std::string& output, std::vector<std::string> overrides = {}) {
    std::vector<std::string> all = {
        "data.text=" + JoinPath(directory_, "text.txt"),
        "data.directory=" + JoinPath(directory_, "data"),
        "data.validation_fraction=0.1",
        "train.output=" + JoinPath(directory_, output),
    };
    all.insert(all.end(), overrides.begin(), overrides.end());
    absl::StatusOr<Job> job = ParseJob(kJob, "test", all);
    FATHOM_CHECK(job.ok()) << job.status().message();
    return *job;
  }

  absl::Status RunJob(const Job& job, bool resume, const Hooks& hooks = {},
                      FileSystem& files = PosixFileSystem()) {
    CpuDevice device(2);
    Progress progress(std::tmpfile(), /*terminal=*/false);
    std::atomic<int> stop{0};
    log_.clear();
    Trainer trainer(job, {.device = device,
                          .files = files,
                          .log = [&](const std::string& line) { log_ += line + "\n"; },
                          .progress = progress,
                          .stop_signal = stop,
                          .before_update =
                              [&](int64_t step, const ParameterTable& parameters) {
                                if (step == hooks.stop_after) stop = 15;
                                if (hooks.before_update) hooks.before_update(step, parameters);
                              }});
    FATHOM_RETURN_IF_ERROR(trainer.Start(resume));
    return trainer.Run();
  }

  std::string Read(const std::string& path) {
    absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), JoinPath(directory_, path));
    FATHOM_CHECK(text.ok()) << text.status().message();
    return *text;
  }

  // metrics.jsonl without what differs between two runs of the same numbers.
  std::vector<nlohmann::json> Metrics(const std::string& output) {
    std::vector<nlohmann::json> records;
    std::istringstream lines(Read(output + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json record = nlohmann::json::parse(line);
      record.erase("tokens_per_second");
      record.erase("seconds");
      records.push_back(record);
    }
    return records;
  }

  void ExpectSameRun(const std::string& a, const std::string& b) {
    for (const char* file : {"weights", "optimizer"}) {
      const std::string name = absl::StrCat("/step_00000010/", file, "_00000.safetensors");
      EXPECT_TRUE(Read(a + name) == Read(b + name)) << a << ", " << b << ": " << name;
    }
    EXPECT_EQ(Metrics(a), Metrics(b));
  }

  std::string directory_;
  std::string log_;
};

TEST_F(TrainerTest, LearnsAndRecordsEveryStep) {
  ASSERT_EQ(RunJob(MakeJob("run"), false), absl::OkStatus());
  const std::vector<nlohmann::json> records = Metrics("run");
  ASSERT_EQ(records.size(), 13);  // validation at 0, 5 and 10
  EXPECT_EQ(records[0]["kind"], "validation");
  EXPECT_EQ(records[0]["step"], 0);
  EXPECT_NEAR(records[0]["loss_causal"], std::log(257), 0.1);
  EXPECT_EQ(records[12]["step"], 10);
  EXPECT_LT(records[12]["loss_causal"], records[0]["loss_causal"].get<double>() - 0.5);
  for (int64_t step = 1; step <= 10; ++step) {
    const nlohmann::json& record = records[step <= 5 ? step : step + 1];
    EXPECT_EQ(record["step"], step);
    EXPECT_EQ(record["consumed_sequences"], 4 * step);
    EXPECT_GT(record["gradient_norm"], 0);
    EXPECT_GT(record["auxiliary_loss"], 0);
  }
  EXPECT_EQ(Read("run/LATEST"), "step_00000010\n");
}

TEST_F(TrainerTest, TheSameJobTwiceGivesTheSameBits) {
  ASSERT_EQ(RunJob(MakeJob("a"), false), absl::OkStatus());
  ASSERT_EQ(RunJob(MakeJob("b"), false), absl::OkStatus());
  ExpectSameRun("a", "b");
}

TEST_F(TrainerTest, StoppedAndResumedIsTheSameRunBitForBit) {
  const std::map<std::string, std::vector<std::string>> variants = {
      {"xmod", {}},
      {"dense", {"model.plan=[{repeat: 3 dense {}}]"}},
      {"adamw", {"optimizer.kind=ADAMW"}},
      {"fp64", {"train.precision=FP64"}},
      {"bf16", {"train.precision=BF16"}},
      {"moe", Experts()},
      {"moe_bf16", With(Experts(), "train.precision=BF16")},
      {"bf16_dense_adamw",
       {"train.precision=BF16", "model.plan=[{repeat: 3 dense {}}]", "optimizer.kind=ADAMW"}},
  };
  for (const auto& [name, overrides] : variants) {
    SCOPED_TRACE(name);
    const std::string whole = name + "_whole", parts = name + "_parts";
    ASSERT_EQ(RunJob(MakeJob(whole, overrides), false), absl::OkStatus());
    const Job job = MakeJob(parts, overrides);
    ASSERT_EQ(RunJob(job, false, {.stop_after = 5, .before_update = {}}), absl::OkStatus());
    EXPECT_EQ(Read(parts + "/LATEST"), "step_00000005\n");
    ASSERT_EQ(RunJob(job, true), absl::OkStatus());
    ExpectSameRun(whole, parts);
  }
}

TEST_F(TrainerTest, TheTimeLimitSavesAndTheRunGoesOnLater) {
  ASSERT_EQ(RunJob(MakeJob("whole"), false), absl::OkStatus());
  ASSERT_EQ(RunJob(MakeJob("limited", {"train.maximum_minutes=1e-9"}), false), absl::OkStatus());
  EXPECT_EQ(Read("limited/LATEST"), "step_00000000\n");
  ASSERT_EQ(RunJob(MakeJob("limited"), true), absl::OkStatus());
  ExpectSameRun("whole", "limited");
}

// Every step says how even the load of experts is, and it follows the biases.
TEST_F(TrainerTest, RecordsTheLoadOfExperts) {
  double seen = 0, unevenness = 0;
  const Hooks hooks = {
      .stop_after = 0, .before_update = [&](int64_t, const ParameterTable& parameters) {
        const Parameter* bias = parameters.Find("model.layers.0.mlp.gate.e_score_correction_bias");
        const float* counts = bias->gradient.data<float>();
        const double mean = 4 * 32 * 2 / 6.0;
        EXPECT_EQ(std::accumulate(counts, counts + 6, 0.0), 4 * 32 * 2);
        seen = *std::max_element(counts, counts + 6) / mean - 1;
        unevenness = std::max(unevenness, seen);
      }};
  std::vector<std::string> overrides = Experts();
  overrides.push_back("model.plan=[{moe {}}]");
  ASSERT_EQ(RunJob(MakeJob("run", overrides), false, hooks), absl::OkStatus());
  EXPECT_GT(unevenness, 0);
  const std::vector<nlohmann::json> records = Metrics("run");
  for (const nlohmann::json& record : records) {
    if (record["kind"] != "train") continue;
    EXPECT_GE(record["expert_violation"], 0);
    EXPECT_GT(record["expert_entropy"], 0.5);
    EXPECT_LE(record["expert_entropy"], 1);
    if (record["step"] == 10) {
      EXPECT_NEAR(record["expert_violation"], seen, 1e-12);
    }
  }
  ASSERT_EQ(RunJob(MakeJob("without"), false), absl::OkStatus());
  EXPECT_FALSE(Metrics("without")[1].contains("expert_violation"));
}

// The batch that gradients are accumulated over may be cut in any way.
TEST_F(TrainerTest, MicroBatchesGiveTheSameGradients) {
  std::vector<std::vector<nlohmann::json>> runs;
  for (int64_t micro_batch : {1, 2, 4}) {
    const std::string output = absl::StrCat("micro_", micro_batch);
    ASSERT_EQ(RunJob(MakeJob(output, {absl::StrCat("train.micro_batch=", micro_batch),
                                      "train.precision=FP64", "train.steps=3"}),
                     false),
              absl::OkStatus());
    runs.push_back(Metrics(output));
  }
  for (size_t run : {1, 2}) {
    for (size_t i = 0; i < runs[0].size(); ++i) {
      for (const char* field : {"loss", "auxiliary_loss", "gradient_norm", "loss_causal"}) {
        if (!runs[0][i].contains(field)) continue;
        const double expected = runs[0][i][field];
        EXPECT_NEAR(runs[run][i][field], expected, 1e-12 * expected) << field;
      }
    }
  }
}

// The same with documents that end everywhere, so that micro-batches differ in their labels.
TEST_F(TrainerTest, MicroBatchesOfDocumentsGiveTheSameGradients) {
  std::string lines;
  for (uint32_t i = 0; lines.size() < 20000; ++i) {
    lines += "{\"text\":\"" + Text(Philox4x32({i, 0, 0, 0}, {3, 4})[0] % 40) + "\"}\n";
  }
  WriteTestFile(JoinPath(directory_, "lines.jsonl"), lines);
  const std::string tokens = JoinPath(directory_, "lines.tokens");
  ASSERT_TRUE(PrepareTokens(PosixFileSystem(), {JoinPath(directory_, "lines.jsonl")},
                            **MakeTokenizer("bytes"), tokens, {})
                  .ok());
  const auto run = [&](const std::string& output, int64_t micro_batch, int64_t length, bool mask) {
    std::vector<std::string> settings = {absl::StrCat("train.micro_batch=", micro_batch),
                                         absl::StrCat("train.sequence_length=", length),
                                         "train.precision=FP64",
                                         "train.steps=3",
                                         "data.train=" + tokens,
                                         "data.validation=" + tokens};
    if (mask) settings.push_back("data.document_mask=true");
    EXPECT_EQ(RunJob(MakeJob(output, settings), false), absl::OkStatus());
    return Metrics(output);
  };
  for (const int64_t length : {4, 32}) {
    const auto whole = run(absl::StrCat("whole", length), 4, length, true);
    const auto apart = run(absl::StrCat("apart", length), 1, length, true);
    int64_t different = 0;
    const auto unmasked = run(absl::StrCat("unmasked", length), 4, length, false);
    for (size_t i = 0; i < whole.size(); ++i) {
      for (const char* field : {"loss", "auxiliary_loss", "gradient_norm", "loss_causal"}) {
        if (!whole[i].contains(field)) continue;
        const double expected = whole[i][field];
        EXPECT_NEAR(apart[i][field], expected, 1e-12 * expected) << field;
        different += unmasked[i][field] != whole[i][field];
      }
    }
    EXPECT_GT(different, 0);
  }
}

// A sequence with one label that counts, of loss 2, and one with three, of loss 1: the mean is over
// the labels, 1.25, whether the two are one micro-batch or two.
TEST_F(TrainerTest, EveryLabelCountsTheSame) {
  constexpr int32_t kA = 1, kB = 2;
  auto writer = TokenFileWriter::Create(PosixFileSystem(), JoinPath(directory_, "ab.tokens"),
                                        {.tokenizer = "bytes", .vocabulary = 257});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const std::vector<int32_t>& document :
       std::vector<std::vector<int32_t>>{{kA, kA}, {kA}, {kA}, {kB, kB, kB, kB}, {kA}}) {
    ASSERT_TRUE((*writer)->Append(document.data(), document.size()).ok());
    ASSERT_TRUE((*writer)->EndDocument().ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto job = [this](const std::string& output, const std::vector<std::string>& more) {
    std::vector<std::string> settings = {
        "model.plan=[{repeat: 1 dense {}}]",
        "train.precision=FP64",
        "train.steps=1",
        "train.sequence_length=4",
        "train.global_batch=2",
        "train.validate_every=0",
        "data.document_mask=true",
        "data.train=" + JoinPath(directory_, "ab.tokens"),
    };
    settings.insert(settings.end(), more.begin(), more.end());
    return MakeJob(output, settings);
  };
  // Weights by which token a has a logit s_a for label a, b one s_b for b, and all others are 0:
  // the layer adds nothing, and embeddings are so large that eps does not show in their norm.
  constexpr int64_t kWidth = 32, kVocabulary = 257;
  const auto logit = [](double loss) {  // log(e^s + V - 1) - s = loss
    return std::log((kVocabulary - 1) / (std::exp(loss) - 1));
  };
  ASSERT_EQ(RunJob(job("shapes", {"train.micro_batch=2"}), false), absl::OkStatus());
  const absl::StatusOr<Checkpoint> checkpoint =
      OpenCheckpoint(PosixFileSystem(), JoinPath(directory_, "shapes/step_00000001"));
  ASSERT_EQ(checkpoint.status(), absl::OkStatus());
  std::vector<NamedArray> arrays = checkpoint->weights->tensors();
  std::map<std::string, std::vector<double>> weights;
  for (NamedArray& array : arrays) {
    std::vector<double>& values = weights[array.name];
    values.assign(array.shape.elements(), array.shape.rank() == 1 ? 1.0 : 0.0);
    array.data = values.data();
  }
  const double length = std::sqrt(kWidth);  // of a normed row
  weights.at("model.embed_tokens.weight")[kA * kWidth + 0] = 1e6;
  weights.at("model.embed_tokens.weight")[kB * kWidth + 1] = 1e6;
  weights.at("lm_head.weight")[kA * kWidth + 0] = logit(2) / length;
  weights.at("lm_head.weight")[kB * kWidth + 1] = logit(1) / length;
  const std::string path = JoinPath(directory_, "ab.safetensors");
  ASSERT_EQ(WriteSafetensorsFile(PosixFileSystem(), path, arrays, {}), absl::OkStatus());

  std::vector<std::vector<double>> gradients;
  for (const std::string micro_batch : {"1", "2"}) {
    std::vector<double> head;
    const auto keep = [&](int64_t, const ParameterTable& parameters) {
      const Tensor& all = parameters.gradients();
      gradients.emplace_back(all.data<double>(), all.data<double>() + all.elements());
      for (const Parameter& parameter : parameters.all()) {
        if (parameter.spec.name != "lm_head.weight") continue;
        const double* gradient = parameter.gradient.data<double>();
        head.assign(gradient, gradient + parameter.gradient.elements());
      }
    };
    const std::string output = "micro_" + micro_batch;
    ASSERT_EQ(RunJob(job(output, {"train.micro_batch=" + micro_batch, "train.init_from=" + path}),
                     false, {.stop_after = 0, .before_update = keep}),
              absl::OkStatus());
    EXPECT_NEAR(Metrics(output).back()["loss"], 1.25, 1e-12);
    ASSERT_EQ(head.size(), kVocabulary * kWidth);
    // (p - 1) times the normed row, once of four labels, and three times.
    EXPECT_NEAR(head[kA * kWidth + 0], (std::exp(-2) - 1) * length / 4, 1e-12);
    EXPECT_NEAR(head[kB * kWidth + 1], (std::exp(-1) - 1) * length * 3 / 4, 1e-12);
  }
  ASSERT_EQ(gradients[0].size(), gradients[1].size());
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    ASSERT_NEAR(gradients[0][i], gradients[1][i], 1e-15) << i;
  }
}

TEST_F(TrainerTest, AnInfiniteGradientSkipsTheStepOnly) {
  std::map<int64_t, std::vector<double>> before;  // weights before each update
  const auto spoil = [&](int64_t step, const ParameterTable& parameters) {
    const Tensor& all = parameters.gradients();
    for (const Parameter& parameter : parameters.all()) {
      const float* weight = parameter.weight.data<float>();
      before[step].insert(before[step].end(), weight, weight + parameter.weight.elements());
    }
    if (step == 3) all.data<float>()[7] = std::numeric_limits<float>::infinity();
  };
  ASSERT_EQ(
      RunJob(MakeJob("run", {"train.steps=5"}), false, {.stop_after = 0, .before_update = spoil}),
      absl::OkStatus());
  EXPECT_NE(before[2], before[3]);
  EXPECT_EQ(before[3], before[4]);
  EXPECT_NE(before[4], before[5]);
  EXPECT_NE(log_.find("step 3 was skipped"), std::string::npos) << log_;
  // The update's number, by which AdamW corrects its moments, counts four steps.
  const absl::StatusOr<Checkpoint> checkpoint =
      OpenCheckpoint(PosixFileSystem(), JoinPath(directory_, "run/step_00000005"));
  ASSERT_EQ(checkpoint.status(), absl::OkStatus());
  double step[kStepScalars];
  ASSERT_EQ(checkpoint->optimizer->Read("step", DType::kFloat64, {kStepScalars}, step),
            absl::OkStatus());
  EXPECT_EQ(step[kAdamStep], 4);
}

TEST_F(TrainerTest, ThreeSkippedStepsInARowEndTheRun) {
  const auto spoil = [](int64_t step, const ParameterTable& parameters) {
    if (step >= 4) parameters.gradients().data<float>()[7] = NAN;
  };
  const absl::Status status = RunJob(MakeJob("run", {"checkpoint.every=2"}), false,
                                     {.stop_after = 0, .before_update = spoil});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("3 steps in a row"), std::string::npos) << status;
  EXPECT_EQ(Metrics("run").back()["step"], 6);
  // Nothing of it is lost: the last checkpoint holds the weights as step 3 left them.
  EXPECT_EQ(Read("run/LATEST"), "step_00000004\n");
}

TEST_F(TrainerTest, RefusesAnOutputThatHoldsARun) {
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=1"}), false), absl::OkStatus());
  const std::string metrics = Read("run/metrics.jsonl");
  const absl::Status status = RunJob(MakeJob("run", {"train.steps=1"}), false);
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(status.message().find("--resume"), std::string::npos) << status;
  EXPECT_EQ(Read("run/metrics.jsonl"), metrics);
}

TEST_F(TrainerTest, ResumeWithoutACheckpointStartsAndSaysSo) {
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=1"}), true), absl::OkStatus());
  EXPECT_NE(log_.find("no checkpoint to resume from"), std::string::npos) << log_;
  EXPECT_EQ(Metrics("run").size(), 3);
}

// As a crash in the first save leaves it.
TEST_F(TrainerTest, ResumesFromTheHighestStepWithoutLatest) {
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=2", "checkpoint.every=1"}), false),
            absl::OkStatus());
  ASSERT_EQ(PosixFileSystem().RemoveAll(JoinPath(directory_, "run/LATEST")), absl::OkStatus());
  EXPECT_EQ(RunJob(MakeJob("run", {"train.steps=3"}), false).code(),
            absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=3"}), true), absl::OkStatus());
  EXPECT_NE(log_.find("resumed from " + JoinPath(directory_, "run/step_00000002")),
            std::string::npos)
      << log_;
  EXPECT_EQ(Read("run/LATEST"), "step_00000003\n");
}

TEST_F(TrainerTest, RecordsBeyondTheResumedStepAreDropped) {
  const Job job = MakeJob("run", {"checkpoint.every=4"});
  ASSERT_EQ(RunJob(job, false, {.stop_after = 0, .before_update = {}}), absl::OkStatus());
  const std::vector<nlohmann::json> whole = Metrics("run");
  // As if the run had been killed in step 10: the newest checkpoint is that of step 8.
  ASSERT_EQ(PosixFileSystem().RemoveAll(JoinPath(directory_, "run/step_00000010")),
            absl::OkStatus());
  ASSERT_EQ(
      WriteFileAtomically(PosixFileSystem(), JoinPath(directory_, "run/LATEST"), "step_00000008\n"),
      absl::OkStatus());
  ASSERT_EQ(RunJob(job, true), absl::OkStatus());
  EXPECT_EQ(Metrics("run"), whole);
}

TEST_F(TrainerTest, WeightsThatAreNotNumbersAreRefused) {
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=1"}), false), absl::OkStatus());
  const absl::StatusOr<Checkpoint> checkpoint =
      OpenCheckpoint(PosixFileSystem(), JoinPath(directory_, "run/step_00000001"));
  ASSERT_EQ(checkpoint.status(), absl::OkStatus());
  std::vector<NamedArray> arrays = checkpoint->weights->tensors();
  std::vector<std::vector<char>> storage;
  for (NamedArray& array : arrays) {
    std::vector<char>& data = storage.emplace_back(array.bytes());
    ASSERT_EQ(checkpoint->weights->Read(array.name, array.dtype, array.shape, data.data()),
              absl::OkStatus());
    array.data = data.data();
  }
  std::vector<float> spoiled(arrays[0].shape.elements(), 0.5f);
  spoiled[3] = NAN;
  arrays[0].data = spoiled.data();
  const std::string path = JoinPath(directory_, "spoiled.safetensors");
  ASSERT_EQ(WriteSafetensorsFile(PosixFileSystem(), path, arrays, {}), absl::OkStatus());
  const absl::Status status = RunJob(MakeJob("other", {"train.init_from=" + path}), false);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(arrays[0].name), std::string::npos) << status;
}

// Appends to what holds `part` in its path fail.
FaultyFiles FullDiskAt(const std::string& part) {
  return FaultyFiles(PosixFileSystem(), [part](FileOperation operation, const std::string& path) {
    return operation == FileOperation::kAppend && path.find(part) != std::string::npos
               ? absl::ResourceExhaustedError("no space left for " + path)
               : absl::OkStatus();
  });
}

TEST_F(TrainerTest, AFailedSaveIsReportedAndTheRunGoesOn) {
  for (const std::string async : {"false", "true"}) {
    const std::string output = "run_" + async;
    FaultyFiles files = FullDiskAt("step_00000004.tmp/optimizer");
    ASSERT_EQ(RunJob(MakeJob(output,
                             {"train.steps=6", "checkpoint.every=2", "checkpoint.async=" + async}),
                     false, {}, files),
              absl::OkStatus());
    const std::string path =
        JoinPath(directory_, output + "/step_00000004.tmp/optimizer_00000.safetensors");
    EXPECT_NE(log_.find("step 4 could not be saved: no space left for " + path +
                        "; the run goes on, and what was saved before is as it was\n"),
              std::string::npos)
        << log_;
    std::vector<std::string> names = *PosixFileSystem().List(JoinPath(directory_, output));
    std::erase_if(names, [](const std::string& name) { return name.rfind("step_", 0) != 0; });
    EXPECT_EQ(names, (std::vector<std::string>{"step_00000002", "step_00000006"}));
    EXPECT_EQ(Read(output + "/LATEST"), "step_00000006\n");
  }
}

TEST_F(TrainerTest, ALastSaveThatFailsIsAnError) {
  FaultyFiles files = FullDiskAt("step_00000006.tmp");
  const absl::Status status =
      RunJob(MakeJob("run", {"train.steps=6", "checkpoint.every=2", "checkpoint.async=true"}),
             false, {}, files);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(status.message().find("step 6, the last one, could not be saved: no space left"), 0)
      << status;
  EXPECT_EQ(Read("run/LATEST"), "step_00000004\n");
  ASSERT_EQ(RunJob(MakeJob("run", {"train.steps=6"}), true), absl::OkStatus());
  EXPECT_EQ(Read("run/LATEST"), "step_00000006\n");
}

TEST_F(TrainerTest, BackgroundSavesAreTheSameCheckpoints) {
  ASSERT_EQ(RunJob(MakeJob("at_once", {"checkpoint.every=1"}), false), absl::OkStatus());
  ASSERT_EQ(RunJob(MakeJob("later", {"checkpoint.every=1", "checkpoint.async=true"}), false),
            absl::OkStatus());
  for (int64_t step = 1; step <= 10; ++step) {
    for (const char* file : {"weights", "optimizer"}) {
      const std::string name = absl::StrFormat("/step_%08d/%s_00000.safetensors", step, file);
      EXPECT_TRUE(Read("at_once" + name) == Read("later" + name)) << name;
    }
  }
  EXPECT_EQ(Metrics("at_once"), Metrics("later"));
}

// A skipped step leaves a gradient norm that is not finite among the optimizer's numbers.
TEST_F(TrainerTest, ARunResumesBehindASkippedStep) {
  const auto spoil = [](int64_t step, const ParameterTable& parameters) {
    if (step == 5) parameters.gradients().data<float>()[7] = NAN;
  };
  ASSERT_EQ(RunJob(MakeJob("whole"), false, {.stop_after = 0, .before_update = spoil}),
            absl::OkStatus());
  ASSERT_EQ(RunJob(MakeJob("parts"), false, {.stop_after = 5, .before_update = spoil}),
            absl::OkStatus());
  ASSERT_EQ(RunJob(MakeJob("parts"), true), absl::OkStatus());
  ExpectSameRun("whole", "parts");
}

// Whatever write fails, the run ends with an error or goes through, and what was saved stays whole.
TEST_F(TrainerTest, FailingFilesEndTheRunAndSpoilNothing) {
  ASSERT_EQ(RunJob(MakeJob("first", {"train.steps=1"}), false), absl::OkStatus());
  FailingFiles counting(-1);
  ASSERT_EQ(
      RunJob(MakeJob("counted", {"train.steps=2", "checkpoint.every=1"}), false, {}, counting),
      absl::OkStatus());
  for (int64_t fail_at = 0; fail_at < counting.operations(); fail_at += 11) {
    const std::string output = absl::StrCat("failing_", fail_at);
    FailingFiles files(fail_at);
    const Job job = MakeJob(output, {"train.steps=2", "checkpoint.every=1"});
    const absl::Status status = RunJob(job, false, {}, files);
    // Where nothing but the last clean-up fails, the run is there.
    if (!status.ok()) {
      EXPECT_FALSE(status.message().empty());
    } else {
      EXPECT_EQ(Read(output + "/LATEST"), "step_00000002\n") << fail_at;
    }
    ASSERT_EQ(RunJob(job, true), absl::OkStatus()) << fail_at;
    EXPECT_EQ(Metrics(output).back()["step"], 2);
  }
}

}  // namespace
}  // namespace fathom
