#include "core/job.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace fathom {
namespace {

const char kMinimal[] = R"(
model {
  d: 64 heads: 16 kv_heads: 8 head_dim: 8 ffn: 192 vocabulary: 257
  plan { repeat: 4 dense {} }
}
data { text: "t.txt" }
train { steps: 20 sequence_length: 128 }
)";

Job Parse(const std::vector<std::string>& overrides, const std::string& text = kMinimal) {
  const auto job = ParseJob(text, "tiny", overrides);
  EXPECT_TRUE(job.ok()) << job.status().message();
  return job.ok() ? *job : Job();
}

std::string Refusal(const std::vector<std::string>& overrides, const std::string& text = kMinimal) {
  const auto job = ParseJob(text, "tiny", overrides);
  if (job.ok()) return "accepted";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

// `text` with the first `from` replaced.
std::string Replaced(const std::string& from, const std::string& to) {
  std::string text = kMinimal;
  return text.replace(text.find(from), from.size(), to);
}

TEST(JobTest, WhatIsLeftOutTakesTheDefaultsOfTheStructs) {
  const Job job = Parse({});
  EXPECT_EQ(job.name, "tiny");
  const ModelConfig model;
  EXPECT_EQ(job.model.d, 64);
  EXPECT_EQ(job.model.heads, 16);
  EXPECT_EQ(job.model.kv_heads, 8);
  EXPECT_EQ(job.model.head_dim, 8);
  EXPECT_EQ(job.model.ffn, 192);
  EXPECT_EQ(job.model.vocabulary, 257);
  EXPECT_EQ(job.model.theta, model.theta);
  EXPECT_EQ(job.model.eps, model.eps);
  EXPECT_EQ(job.model.gate, model.gate);
  EXPECT_EQ(job.model.tau, model.tau);
  EXPECT_EQ(job.model.increment, model.increment);
  EXPECT_EQ(job.model.alignment, model.alignment);
  EXPECT_EQ(job.model.routing_coefficient, model.routing_coefficient);
  EXPECT_EQ(job.model.reset_every, model.reset_every);
  EXPECT_EQ(job.model.experts, model.experts);
  EXPECT_EQ(job.model.routed, model.routed);
  EXPECT_EQ(job.model.shared, model.shared);
  EXPECT_EQ(job.model.expert_ffn, model.expert_ffn);
  EXPECT_EQ(job.model.scoring, model.scoring);
  EXPECT_EQ(job.model.balance_coefficient, model.balance_coefficient);
  EXPECT_EQ(job.model.expert_bias_rate, model.expert_bias_rate);
  EXPECT_EQ(ShortForm(job.model.plan.segments), "4*D");
  EXPECT_EQ(job.parallel.tensor, 1);
  EXPECT_EQ(job.parallel.lanes, 1);
  EXPECT_EQ(job.parallel.expert, 1);
  EXPECT_FALSE(job.parallel.expert_tensor);

  const DataConfig data;
  EXPECT_EQ(job.data.train, data.train);
  EXPECT_EQ(job.data.validation, data.validation);
  EXPECT_EQ(job.data.tokenizer, data.tokenizer);
  EXPECT_EQ(job.data.text, std::vector<std::string>{"t.txt"});
  EXPECT_EQ(job.data.validation_fraction, data.validation_fraction);
  EXPECT_EQ(job.data.text_bytes, data.text_bytes);
  EXPECT_EQ(job.data.directory, data.directory);
  EXPECT_EQ(job.data.document_mask, data.document_mask);
  EXPECT_EQ(job.data.seed, data.seed);

  const TrainConfig train;
  EXPECT_EQ(job.train.steps, 20);
  EXPECT_EQ(job.train.sequence_length, 128);
  EXPECT_EQ(job.train.micro_batch, train.micro_batch);
  EXPECT_EQ(job.train.global_batch, train.global_batch);
  EXPECT_EQ(job.train.seed, train.seed);
  EXPECT_EQ(job.train.precision, train.precision);
  EXPECT_EQ(job.train.init_from, train.init_from);
  EXPECT_EQ(job.train.output, "runs/tiny");
  EXPECT_EQ(job.train.validate_every, train.validate_every);
  EXPECT_EQ(job.train.validation_sequences, train.validation_sequences);
  EXPECT_EQ(job.train.maximum_minutes, train.maximum_minutes);
  EXPECT_EQ(job.train.watchdog_seconds, train.watchdog_seconds);
}

TEST(JobTest, TheRecipeIsTheDefault) {
  const Job job = Parse({});
  const OptimizerConfig optimizer;
  EXPECT_EQ(job.optimizer.learning_rate, optimizer.learning_rate);
  EXPECT_EQ(job.optimizer.weight_decay, optimizer.weight_decay);
  EXPECT_EQ(job.optimizer.clip, optimizer.clip);
  EXPECT_EQ(job.optimizer.muon, optimizer.muon);
  EXPECT_EQ(job.optimizer.momentum, optimizer.momentum);
  EXPECT_EQ(job.optimizer.newton_schulz_steps, optimizer.newton_schulz_steps);
  EXPECT_EQ(job.optimizer.beta1, optimizer.beta1);
  EXPECT_EQ(job.optimizer.beta2, optimizer.beta2);
  EXPECT_EQ(job.optimizer.epsilon, optimizer.epsilon);
  const ScheduleConfig schedule;
  EXPECT_EQ(job.schedule.kind, schedule.kind);
  EXPECT_EQ(job.schedule.warmup_fraction, schedule.warmup_fraction);
  EXPECT_EQ(job.schedule.final_fraction, schedule.final_fraction);
  EXPECT_EQ(job.schedule.decay_fraction, schedule.decay_fraction);
  const CheckpointConfig checkpoint;
  EXPECT_EQ(job.checkpoint.every, checkpoint.every);
  EXPECT_EQ(job.checkpoint.keep, checkpoint.keep);
  EXPECT_EQ(job.checkpoint.keep_every, checkpoint.keep_every);
  EXPECT_EQ(job.checkpoint.async, checkpoint.async);
  EXPECT_EQ(job.debug.dump_step, 0);
  EXPECT_EQ(job.device.threads, 0);
}

TEST(JobTest, OverridesReachEveryField) {
  const Job job = Parse({
      "name=other",
      "model.d=32",
      "model.theta=1e4",
      "model.eps=1e-5",
      "model.gate=MOD",
      "model.tau=0.5",
      "model.increment=2",
      "model.alignment=RAW",
      "model.reset_every=3",
      "model.routing_coefficient=0",
      "data.train=a/b c.bin",
      "data.validation=\"quoted\"",
      "data.tokenizer=tokens",
      "data.seed=18446744073709551615",
      "data.text_bytes=99",
      "data.directory=here",
      "train.micro_batch=2",
      "train.global_batch=6",
      "train.seed=7",
      "train.precision=FP64",
      "train.init_from=w=1.safetensors",
      "train.output=out",
      "train.validate_every=5",
      "train.validation_sequences=4",
      "train.maximum_minutes=1.5",
      "train.watchdog_seconds=9",
      "optimizer.kind=ADAMW",
      "optimizer.learning_rate=1e-3",
      "optimizer.clip=0",
      "schedule.kind=WARMUP_STABLE_DECAY",
      "schedule.decay_fraction=0.5",
      "checkpoint.every=10",
      "checkpoint.keep=2",
      "checkpoint.keep_every=20",
      "device.threads=3",
  });
  EXPECT_EQ(job.name, "other");
  EXPECT_EQ(job.model.d, 32);
  EXPECT_EQ(job.model.theta, 1e4);
  EXPECT_EQ(job.model.eps, 1e-5);
  EXPECT_EQ(job.model.gate, Gate::kMod);
  EXPECT_EQ(job.model.tau, 0.5);
  EXPECT_EQ(job.model.increment, 2);
  EXPECT_EQ(job.model.alignment, Alignment::kRaw);
  EXPECT_EQ(job.model.reset_every, 3);
  EXPECT_EQ(job.model.routing_coefficient, 0);
  EXPECT_EQ(job.data.train, "a/b c.bin");
  EXPECT_EQ(job.data.validation, "quoted");
  EXPECT_EQ(job.data.tokenizer, "tokens");
  EXPECT_EQ(job.data.seed, UINT64_MAX);
  EXPECT_EQ(job.data.text_bytes, 99);
  EXPECT_EQ(job.data.directory, "here");
  EXPECT_EQ(job.train.micro_batch, 2);

  EXPECT_EQ(job.train.seed, 7);
  EXPECT_EQ(job.train.precision, Precision::kFloat64);
  EXPECT_EQ(job.train.init_from, "w=1.safetensors");
  EXPECT_EQ(job.train.output, "out");
  EXPECT_EQ(job.train.validate_every, 5);
  EXPECT_EQ(job.train.validation_sequences, 4);
  EXPECT_EQ(job.train.maximum_minutes, 1.5);
  EXPECT_EQ(job.train.watchdog_seconds, 9);
  EXPECT_FALSE(job.optimizer.muon);
  EXPECT_EQ(job.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(job.optimizer.clip, 0);
  EXPECT_EQ(job.schedule.kind, ScheduleKind::kWarmupStableDecay);
  EXPECT_EQ(job.schedule.decay_fraction, 0.5);
  EXPECT_EQ(job.checkpoint.every, 10);
  EXPECT_EQ(job.checkpoint.keep, 2);
  EXPECT_EQ(job.checkpoint.keep_every, 20);
  EXPECT_EQ(job.device.threads, 3);
}

TEST(JobTest, OverridesReplaceListsAndMessagesWhole) {
  const Job plan =
      Parse({"model.plan=[{repeat: 2 dense {}}, {repeat: 3 group {plan {sparse "
             "{sparsity: 4}} plan {dense {}}}}]"});
  EXPECT_EQ(ShortForm(plan.model.plan.segments), "2*D + 3*(S4 + D)");
  EXPECT_EQ(Parse({"data.text=a.txt"}).data.text, std::vector<std::string>{"a.txt"});
  EXPECT_EQ(Parse({"data.text=['a.txt', \"b.txt\"]"}).data.text,
            (std::vector<std::string>{"a.txt", "b.txt"}));
  const Job optimizer =
      Parse({"optimizer.clip=3", "optimizer={learning_rate: 1}", "optimizer.learning_rate=2"});
  EXPECT_EQ(optimizer.optimizer.clip, 1);
  EXPECT_EQ(optimizer.optimizer.learning_rate, 2);
}

TEST(JobTest, BadOverridesSayWhatWouldBeRight) {
  EXPECT_EQ(Refusal({"train.steps"}),
            "the setting \"train.steps\" is not of the form path.to.field=value");
  EXPECT_EQ(Refusal({"device.kinds=CPU"}),
            "there is no field \"device.kinds\": device has no \"kinds\", only the fields kind, "
            "threads");
  EXPECT_EQ(
      Refusal({"trian.steps=3"})
          .find("there is no field \"trian.steps\": a job has no \"trian\", only the fields name, "
                "model, "),
      0);
  EXPECT_EQ(Refusal({"train.steps.x=3"}),
            "there is no field \"train.steps.x\": train.steps has no fields of its own");
  EXPECT_EQ(Refusal({"model.plan.repeat=3"}),
            "there is no field \"model.plan.repeat\": model.plan is a list, which is set whole");
  EXPECT_EQ(Refusal({"model.gate=SOFT"}),
            "model.gate cannot be set to \"SOFT\": Unknown enumeration value of \"SOFT\" for field "
            "\"gate\"; gate of Model is one of XMOD, MOD, NONE");
  EXPECT_EQ(Refusal({"train.steps=3 micro_batch: 2"}),
            "train.steps cannot be set to \"3 micro_batch: 2\": this is more than one value");
  for (const char* bad : {"train.steps=many", "train.steps=1.5", "train.steps=", "train.seed=-1",
                          "data.document_mask=maybe", "optimizer.clip=x", "model.plan=[{dense {}",
                          "model.plan=3", "train.steps=99999999999999999999"}) {
    EXPECT_NE(Refusal({bad}).find(" cannot be set to "), std::string::npos) << Refusal({bad});
  }
}

TEST(JobTest, ErrorsInTheTextNameLineAndColumn) {
  EXPECT_EQ(Refusal({}, "device {\n  thread: 3\n}"),
            "tiny: line 2, column 9: Device has no field named \"thread\"; it has the fields kind, "
            "threads");
  EXPECT_EQ(Refusal({}, "train { precision: FP16 }"),
            "tiny: line 1, column 25: Unknown enumeration value of \"FP16\" for field "
            "\"precision\"; precision of Train is one of FP32, BF16, FP64");
  EXPECT_NE(Refusal({}, "train { steps: 1\nsteps: 2 }").find("line 2, column "), std::string::npos);
  EXPECT_NE(Refusal({}, "model { d: }").find("line 1, column 12"), std::string::npos);
  EXPECT_NE(Refusal({}, "model {").find("line 1, column "), std::string::npos);
  EXPECT_NE(Refusal({}, "model { plan { dense {} sparse { sparsity: 2 } } }").find("oneof"),
            std::string::npos);
}

struct Case {
  std::string setting;
  std::string refusal;
};

TEST(JobTest, RefusesValuesThatCannotWork) {
  const Case cases[] = {
      {"name=a/b", "name is a/b, but it must be a name without '/', since it names files"},
      {"model.d=0", "model.d is 0, but it must be between 1 and 16777216"},
      {"model.kv_heads=3",
       "model.heads is 16, but it must be a multiple of model.kv_heads, which "
       "is 3"},
      {"model.head_dim=7",
       "model.head_dim is 7, but it must be even, since rotary positions turn pairs"},
      {"model.vocabulary=256",
       "model.vocabulary is 256, but it must be at least 257 with data.tokenizer \"bytes\""},
      {"model.vocabulary=1", "model.vocabulary is 1, but it must be between 2 and 16777216"},
      {"model.theta=0", "model.theta is 0, but it must be greater than 0"},
      {"model.eps=-1", "model.eps is -1, but it must be greater than 0"},
      {"model.tau=nan", "model.tau is nan, but it must be a finite number"},
      {"model.increment=inf", "model.increment is inf, but it must be a finite number"},
      {"model.reset_every=-2", "model.reset_every is -2, but it must be 0 or more"},
      {"model.plan=[]",
       "model.plan is empty; it must list the layers, e.g. plan { repeat: 28 "
       "dense {} }"},
      {"model.plan=[{}]",
       "model.plan[0] names no layer; it must hold dense {}, moe {}, sparse { sparsity: K } or "
       "group { plan ... }"},
      {"model.plan=[{group {}}]",
       "model.plan[0].group.plan is empty; it must list the layers, "
       "e.g. plan { repeat: 28 dense {} }"},
      {"model.plan=[{repeat: 0 dense {}}]",
       "model.plan[0].repeat is 0, but it must be between 1 and 100000"},
      {"model.plan=[{repeat: 1000 group {plan {repeat: 101 dense {}}}}]",
       "model.plan is 1000*(101*D), but it must have at most 100000 layers"},
      {"model.plan=[{dense {}}, {sparse {}}]",
       "model.plan[1].sparse has no sparsity; it must be given, e.g. sparse { sparsity: 16 }"},
      {"model.plan=[{sparse {sparsity: 0}}]",
       "model.plan[0].sparse.sparsity is 0, but it must be 1 or more"},
      {"model.plan=[{sparse {sparsity: 129}}]",
       "model.plan[0].sparse.sparsity is 129, which is larger than train.sequence_length 128, so a "
       "sparse layer would select no token"},
      {"data.text=[]",
       "data.train is empty, but it must be a token file, or data.text must name a "
       "text to prepare one from"},
      {"data.validation_fraction=1",
       "data.validation_fraction is 1, but it must be from 0 to below "
       "1"},
      {"data.tokenizer=",
       "data.tokenizer is empty, but it must be \"bytes\" or the path of a tokenizer"},
      {"train.steps=0", "train.steps is 0, but it must be between 1 and 1073741824"},
      {"train.micro_batch=2",
       "train.global_batch is 1, but it must be a multiple of train.micro_batch, which is 2"},
      {"train={steps: 1 sequence_length: 1000000000 micro_batch: 3 global_batch: 3}",
       "train.micro_batch is 3, but it must be at most 2 with train.sequence_length 1000000000, so "
       "that a micro-batch has at most 2147483647 tokens"},
      {"train.maximum_minutes=-1", "train.maximum_minutes is -1, but it must be 0 or more"},
      {"optimizer.learning_rate=0", "optimizer.learning_rate is 0, but it must be greater than 0"},
      {"optimizer.beta2=1", "optimizer.beta2 is 1, but it must be from 0 to below 1"},
      {"schedule.final_fraction=1.5",
       "schedule.final_fraction is 1.5, but it must be between 0 and "
       "1"},
      {"schedule={kind: WARMUP_STABLE_DECAY warmup_fraction: 0.9}",
       "schedule.decay_fraction is 0.2, but it must be at most 1 less schedule.warmup_fraction, "
       "which is 0.9"},
      {"checkpoint={every: 10 keep_every: 15}",
       "checkpoint.keep_every is 15, but it must be a multiple of checkpoint.every, which is 10, "
       "or "
       "0 to keep none besides"},
      {"device.threads=-1", "device.threads is -1, but it must be between 0 and 4096"},
  };
  for (const Case& c : cases) EXPECT_EQ(Refusal({c.setting}), "tiny: " + c.refusal) << c.setting;
  EXPECT_EQ(Refusal({}, Replaced("steps: 20", "")),
            "tiny: train.steps is not set, but it has no "
            "default");
  EXPECT_EQ(Refusal({"data.train=x", "data.text=[]", "train.validate_every=5"}),
            "tiny: data.validation is empty, but it must be a token file, since "
            "train.validate_every is 5 and data.text is empty");
}

TEST(JobTest, RefusesWhatIsNotBuiltYet) {
  const Case cases[] = {
      {"device.kind=CUDA", "device.kind is CUDA, but devices other than the CPU are not built yet"},
  };
  for (const Case& c : cases) EXPECT_EQ(Refusal({c.setting}), "tiny: " + c.refusal) << c.setting;
  // The defaults, given, are no demand.
  Parse({"parallel={tensor: 1 zero: 0 lanes: 1}", "device.kind=CPU"});
}

TEST(JobTest, MixturesOfExpertsAreRead) {
  const std::vector<std::string> sizes = {"model.experts=8", "model.routed=2",
                                          "model.expert_ffn=24"};
  std::vector<std::string> overrides = sizes;
  overrides.insert(
      overrides.end(),
      {"model.shared=3", "model.scoring=SOFTMAX", "model.balance_coefficient=0",
       "model.expert_bias_rate=0.5", "parallel.expert=4", "parallel.expert_tensor=true",
       "model.plan=[{moe {}}, {sparse {sparsity: 4 experts: true}}, {dense {}}]"});
  const Job job = Parse(overrides);
  EXPECT_EQ(job.model.experts, 8);
  EXPECT_EQ(job.model.routed, 2);
  EXPECT_EQ(job.model.shared, 3);
  EXPECT_EQ(job.model.expert_ffn, 24);
  EXPECT_EQ(job.model.scoring, Scoring::kSoftmax);
  EXPECT_EQ(job.model.balance_coefficient, 0);
  EXPECT_EQ(job.model.expert_bias_rate, 0.5);
  EXPECT_EQ(job.parallel.expert, 4);
  EXPECT_TRUE(job.parallel.expert_tensor);
  EXPECT_EQ(ShortForm(job.model.plan.segments), "E + SE4 + D");
  EXPECT_EQ(job.model.plan.layers[0].spec, (LayerSpec{LayerKind::kDense, 1, true}));
  EXPECT_EQ(job.model.plan.layers[1].spec, (LayerSpec{LayerKind::kSparse, 4, true}));

  // A plan without a dense FFN needs no width of one, and one without experts no experts.
  const std::string no_ffn = Replaced("ffn: 192", "");
  EXPECT_EQ(Refusal({}, no_ffn), "tiny: model.ffn is not set, but it has no default");
  overrides = sizes;
  overrides.push_back("model.plan=[{moe {}}]");
  EXPECT_EQ(Parse(overrides, no_ffn).model.ffn, 0);
  EXPECT_EQ(Parse({"model.experts=8"}).model.experts, 8);
}

TEST(JobTest, RefusesMixturesOfExpertsThatCannotWork) {
  const auto refusal = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"model.plan=[{repeat: 2 moe {}}]", "model.experts=8",
                                    "model.routed=2", "model.expert_ffn=24"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return Refusal(all);
  };
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal({"model.routed=9"}),
            "tiny: model.routed is 9, but it must be at most model.experts, which is 8");
  EXPECT_EQ(refusal({"model.routed=0"}),
            "tiny: model.routed is 0, but it must be between 1 and 65536");
  EXPECT_EQ(refusal({"model.experts=65537"}),
            "tiny: model.experts is 65537, but it must be between 1 and 65536");
  EXPECT_EQ(refusal({"model.expert_ffn=0"}),
            "tiny: model.expert_ffn is 0, but it must be between 1 and 16777216");
  EXPECT_EQ(refusal({"model.shared=-1"}),
            "tiny: model.shared is -1, but it must be between 0 and 65536");
  EXPECT_EQ(refusal({"model.shared=3", "model.expert_ffn=10000000"}),
            "tiny: model.shared is 3, but it must be at most 1 with model.expert_ffn 10000000");
  EXPECT_EQ(refusal({"model.balance_coefficient=-1"}),
            "tiny: model.balance_coefficient is -1, but it must be 0 or more");
  EXPECT_EQ(refusal({"model.expert_bias_rate=-1"}),
            "tiny: model.expert_bias_rate is -1, but it must be 0 or more");
  EXPECT_EQ(refusal({"parallel.expert=0"}),
            "tiny: parallel.expert is 0, but it must be between 1 and 1048576");
  EXPECT_EQ(refusal({"train.sequence_length=1000000000"}), "accepted");
  EXPECT_EQ(refusal({"train.sequence_length=1000000000", "model.routed=3"}),
            "tiny: model.routed is 3, but it must be at most 2 with micro-batches of 1000000000 "
            "tokens, so that their experts have at most 2147483647 rows");

  // What is missing is named, in sparse layers too.
  EXPECT_EQ(Refusal({"model.plan=[{repeat: 2 moe {}}]"}),
            "tiny: model.experts is not set, but model.plan, which is 2*E, has mixtures of "
            "experts");
  EXPECT_EQ(Refusal({"model.plan=[{sparse {sparsity: 4 experts: true}}]", "model.experts=8"}),
            "tiny: model.routed is not set, but model.plan, which is SE4, has mixtures of experts");
  EXPECT_EQ(Refusal({"model.plan=[{moe {}}]", "model.experts=8", "model.routed=8"}),
            "tiny: model.expert_ffn is not set, but model.plan, which is E, has mixtures of "
            "experts");
}

TEST(JobTest, LayoutIsReadAndChecked) {
  const Job job =
      Parse({"parallel={tensor: 2 sequence: true pipeline: 3 data: 4 lanes: 2 zero: 1 "
             "schedule: INTERLEAVED virtual_stages: 2 gradient_reduce: BF16 "
             "bucket_elements: 1000}"});
  EXPECT_EQ(job.parallel.tensor, 2);
  EXPECT_TRUE(job.parallel.sequence);
  EXPECT_EQ(job.parallel.pipeline, 3);
  EXPECT_EQ(job.parallel.data, 4);
  EXPECT_EQ(job.parallel.ranks(), 24);
  EXPECT_EQ(job.parallel.lanes, 2);
  EXPECT_EQ(job.parallel.zero, 1);
  EXPECT_EQ(job.parallel.schedule, PipelineSchedule::kInterleaved);
  EXPECT_EQ(job.parallel.virtual_stages, 2);
  EXPECT_TRUE(job.parallel.gradients_in_bfloat16);
  EXPECT_EQ(job.parallel.bucket_elements, 1000);
  EXPECT_EQ(Parse({"parallel.schedule=GPIPE"}).parallel.schedule, PipelineSchedule::kGPipe);
  EXPECT_EQ(Parse({}).parallel.ranks(), 1);

  const Case cases[] = {
      {"parallel.tensor=0", "parallel.tensor is 0, but it must be between 1 and 1048576"},
      {"parallel.zero=2", "parallel.zero is 2, but it must be between 0 and 1"},
      {"parallel.lanes=65", "parallel.lanes is 65, but it must be between 1 and 64"},
      {"parallel.virtual_stages=2",
       "parallel.virtual_stages is 2, but it must be 1, unless parallel.schedule is INTERLEAVED"},
      {"parallel.schedule=INTERLEAVED",
       "parallel.virtual_stages is 1, but it must be 2 or more with parallel.schedule INTERLEAVED"},
      {"parallel={schedule: INTERLEAVED virtual_stages: 2}",
       "parallel.pipeline is 1, but it must be 2 or more with parallel.schedule INTERLEAVED"},
  };
  for (const Case& c : cases) EXPECT_EQ(Refusal({c.setting}), "tiny: " + c.refusal) << c.setting;
}

TEST(JobTest, DebugFieldsAreReadAndTheStepMustExist) {
  const Job job = Parse({"train.steps=7", "debug.dump_step=7", "debug.dump_dir=somewhere",
                         "debug.selection_file=selection.safetensors"});
  EXPECT_EQ(job.debug.dump_step, 7);
  EXPECT_EQ(job.debug.dump_dir, "somewhere");
  EXPECT_EQ(job.debug.selection_file, "selection.safetensors");
  EXPECT_EQ(Refusal({"train.steps=7", "debug.dump_step=8"}),
            "tiny: debug.dump_step is 8, but it must be at most train.steps, which is 7");
  EXPECT_EQ(Parse({"train.steps=7", "debug.timeline_step=7"}).debug.timeline_step, 7);
  EXPECT_EQ(Refusal({"train.steps=7", "debug.timeline_step=8"}),
            "tiny: debug.timeline_step is 8, but it must be between 0 and 7");
  EXPECT_EQ(Refusal({"debug.dump_step=-1"}),
            "tiny: debug.dump_step is -1, but it must be between 0 and 1073741824");
}

TEST(JobTest, TheResolvedTextIsTheSameJob) {
  const Job job = Parse({"model.gate=NONE", "optimizer.learning_rate=0.1", "train.seed=5"});
  EXPECT_NE(job.text.find("gate: NONE"), std::string::npos) << job.text;
  EXPECT_NE(job.text.find("weight_decay: 0.1\n"), std::string::npos) << job.text;
  EXPECT_NE(job.text.find("output: \"runs/tiny\""), std::string::npos) << job.text;
  const auto again = ParseJob(job.text, "another", {});
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->text, job.text);
  EXPECT_EQ(again->name, "tiny");
  EXPECT_EQ(again->model.gate, Gate::kNone);
  EXPECT_EQ(again->optimizer.learning_rate, 0.1);
  EXPECT_EQ(again->train.seed, 5);
  EXPECT_EQ(again->model.plan.layers.size(), 4);
}

TEST(JobTest, ReadsAFileWithTextsBesideIt) {
  const std::string directory = std::string(std::getenv("TEST_TMPDIR")) + "/jobs";
  std::filesystem::create_directories(directory);
  const std::string path = directory + "/some_job.txtpb";
  std::ofstream(path) << Replaced("\"t.txt\"", "[\"text/t.txt\", \"/absolute.txt\"]");
  const auto job = ReadJob(path, {});
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job->name, "some_job");
  EXPECT_EQ(job->data.text, (std::vector<std::string>{directory + "/text/t.txt", "/absolute.txt"}));
  // A setting counts from the working directory.
  const auto set = ReadJob(path, {"data.text=t.txt"});
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->data.text, std::vector<std::string>{"t.txt"});

  const auto refused = ReadJob(path, {"train.steps=0"});
  EXPECT_EQ(refused.status().message(),
            path + ": train.steps is 0, but it must be between 1 and 1073741824");
  EXPECT_EQ(ReadJob(directory + "/none.txtpb", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(JobTest, PrecisionsHaveDTypes) {
  EXPECT_EQ(ComputeDType(Precision::kFloat32), DType::kFloat32);
  EXPECT_EQ(ComputeDType(Precision::kBFloat16), DType::kBFloat16);
  EXPECT_EQ(ComputeDType(Precision::kFloat64), DType::kFloat64);
}

TEST(JobTest, Blend) {
  const std::string two = Replaced(
      "data { text: \"t.txt\" }",
      "data { blend { path: \"a\" weight: 0.7 } blend { path: \"b\" } tokenizer: \"bytes\" }");
  const Job job = Parse({}, two);
  ASSERT_EQ(job.data.blend.size(), 2u);
  EXPECT_EQ(job.data.blend[0].path, "a");
  EXPECT_EQ(job.data.blend[0].weight, 0.7);
  EXPECT_EQ(job.data.blend[1].path, "b");
  EXPECT_EQ(job.data.blend[1].weight, 1);
  EXPECT_TRUE(job.data.tokenizer_is_set);
  EXPECT_FALSE(Parse({}).data.tokenizer_is_set);
  EXPECT_TRUE(Parse({}).data.blend.empty());
  EXPECT_NE(Refusal({"data.train=c"}, two).find("data.train is c, but it must be empty"),
            std::string::npos)
      << Refusal({"data.train=c"}, two);
  for (const char* source : {"weight: 1", "path: \"a\" weight: 0", "path: \"a\" weight: -1",
                             "path: \"a\" weight: inf", "path: \"a\" weight: nan"}) {
    const std::string text =
        Replaced("data { text: \"t.txt\" }", absl::StrCat("data { blend { ", source, " } }"));
    EXPECT_NE(Refusal({}, text).find("data.blend."), std::string::npos) << Refusal({}, text);
  }
}

}  // namespace
}  // namespace fathom
