#include "core/job_config.h"

#include <cmath>
#include <limits>

#include "core/job_check.h"
#include "core/job_model.h"
#include "core/job_text.h"
#include "core/status.h"
#include "google/protobuf/text_format.h"

namespace fathom {
namespace {

// Counts that fit in int32 with room to add.
constexpr int64_t kMaximumCount = int64_t{1} << 30;
constexpr int64_t kMaximumThreads = 4096;
constexpr int64_t kMaximumRanks = int64_t{1} << 20;  // along one axis
constexpr int64_t kMaximumLanes = 64;

constexpr const char* kRequired[] = {
    "model.d",          "model.heads", "model.kv_heads",        "model.head_dim",
    "model.vocabulary", "train.steps", "train.sequence_length",
};

// Fields that exist, of which only the default works so far.
struct LaterField {
  const char* path;
  const char* what;
};
constexpr LaterField kLater[] = {
    {"device.kind", "devices other than the CPU are"},
};

absl::Status CheckPresence(proto::Job* message) {
  for (const LaterField& later : kLater) {
    FATHOM_ASSIGN_OR_RETURN(const FieldPlace place, FindField(later.path, message));
    if (!place.is_default()) {
      return absl::InvalidArgumentError(absl::StrCat(later.path, " is ", place.value_text(),
                                                     ", but ", later.what, " not built yet"));
    }
  }
  for (const char* path : kRequired) {
    FATHOM_ASSIGN_OR_RETURN(const FieldPlace place, FindField(path, message));
    if (!place.is_set()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not set, but it has no default"));
    }
  }
  const std::string path = FindNonFinite(*message);
  if (path.empty()) return absl::OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const FieldPlace place, FindField(path, message));
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", place.value_text(), ", but it must be a finite number"));
}

absl::StatusOr<ParallelConfig> ToParallel(const proto::Parallel& parallel) {
  JobChecks checks;
  const int64_t one = 1;
  checks.Between("parallel.tensor", parallel.tensor(), one, kMaximumRanks);
  checks.Between("parallel.pipeline", parallel.pipeline(), one, kMaximumRanks);
  checks.Between("parallel.data", parallel.data(), one, kMaximumRanks);
  checks.Between("parallel.expert", parallel.expert(), one, kMaximumRanks);
  checks.Between("parallel.lanes", parallel.lanes(), one, kMaximumLanes);
  checks.Between("parallel.virtual_stages", parallel.virtual_stages(), one, kMaximumCount);
  checks.Between("parallel.zero", parallel.zero(), int64_t{0}, one);
  checks.Between("parallel.bucket_elements", parallel.bucket_elements(), one, kMaximumCount);
  const bool interleaved = parallel.schedule() == proto::Parallel::INTERLEAVED;
  checks.Require(interleaved == (parallel.virtual_stages() > 1), "parallel.virtual_stages",
                 parallel.virtual_stages(),
                 interleaved ? "2 or more with parallel.schedule INTERLEAVED"
                             : "1, unless parallel.schedule is INTERLEAVED");
  checks.Require(!interleaved || parallel.pipeline() > 1, "parallel.pipeline", parallel.pipeline(),
                 "2 or more with parallel.schedule INTERLEAVED");
  if (!checks.ok()) return checks.status();
  return ParallelConfig{
      .tensor = parallel.tensor(),
      .sequence = parallel.sequence(),
      .pipeline = parallel.pipeline(),
      .data = parallel.data(),
      .expert = parallel.expert(),
      .expert_tensor = parallel.expert_tensor(),
      .lanes = parallel.lanes(),
      .schedule = interleaved                                     ? PipelineSchedule::kInterleaved
                  : parallel.schedule() == proto::Parallel::GPIPE ? PipelineSchedule::kGPipe
                                                                  : PipelineSchedule::k1F1B,
      .virtual_stages = parallel.virtual_stages(),
      .zero = parallel.zero(),
      .gradients_in_bfloat16 = parallel.gradient_reduce() == proto::Parallel::BF16,
      .bucket_elements = parallel.bucket_elements()};
}

absl::StatusOr<TrainConfig> ToTrain(const proto::Train& train) {
  JobChecks checks;
  const int64_t one = 1;
  checks.Between("train.steps", train.steps(), one, kMaximumCount);
  checks.Between("train.sequence_length", train.sequence_length(), one, kMaximumCount);
  checks.Between("train.micro_batch", train.micro_batch(), one, kMaximumCount);
  checks.Between("train.global_batch", train.global_batch(), one, kMaximumCount);
  if (!checks.ok()) return checks.status();
  checks.Require(train.global_batch() % train.micro_batch() == 0, "train.global_batch",
                 train.global_batch(),
                 absl::StrCat("a multiple of train.micro_batch, which is ", train.micro_batch()));
  const int64_t most_tokens = std::numeric_limits<int32_t>::max();
  checks.Require(train.micro_batch() * train.sequence_length() <= most_tokens, "train.micro_batch",
                 train.micro_batch(),
                 absl::StrCat("at most ", most_tokens / train.sequence_length(),
                              " with train.sequence_length ", train.sequence_length(),
                              ", so that a micro-batch has at most ", most_tokens, " tokens"));
  checks.Between("train.validate_every", train.validate_every(), int64_t{0}, kMaximumCount);
  checks.Between("train.validation_sequences", train.validation_sequences(), int64_t{0},
                 kMaximumCount);
  checks.NotNegative("train.maximum_minutes", train.maximum_minutes());
  checks.Between("train.watchdog_seconds", train.watchdog_seconds(), one, kMaximumCount);
  if (!checks.ok()) return checks.status();

  TrainConfig config;
  config.steps = train.steps();
  config.sequence_length = train.sequence_length();
  config.micro_batch = train.micro_batch();
  config.global_batch = train.global_batch();
  config.seed = train.seed();
  config.precision = train.precision() == proto::Train::FP64   ? Precision::kFloat64
                     : train.precision() == proto::Train::BF16 ? Precision::kBFloat16
                                                               : Precision::kFloat32;
  config.init_from = train.init_from();
  config.output = train.output();
  config.validate_every = train.validate_every();
  config.validation_sequences = train.validation_sequences();
  config.maximum_minutes = train.maximum_minutes();
  config.watchdog_seconds = train.watchdog_seconds();
  return config;
}

void CheckBlend(const proto::Data& data, JobChecks* checks) {
  constexpr int kMaximumSources = 65535;
  checks->Require(data.blend_size() == 0 || data.train().empty(), "data.train", data.train(),
                  "empty when data.blend names the token files");
  checks->Require(data.blend_size() <= kMaximumSources, "data.blend", data.blend_size(),
                  absl::StrCat("at most ", kMaximumSources, " token files"));
  for (const proto::Data::Source& source : data.blend()) {
    checks->Require(!source.path().empty(), "data.blend.path", "empty", "a token file");
    checks->Require(source.weight() > 0 && std::isfinite(source.weight()), "data.blend.weight",
                    source.weight(), "a finite number above 0");
  }
}

absl::StatusOr<DataConfig> ToData(const proto::Job& message) {
  const proto::Data& data = message.data();
  JobChecks checks;
  CheckBlend(data, &checks);
  checks.Require(!data.train().empty() || data.blend_size() > 0 || data.text_size() > 0,
                 "data.train", "empty",
                 "a token file, or data.text must name a text to prepare one from");
  checks.Require(
      !data.validation().empty() || data.text_size() > 0 || message.train().validate_every() == 0,
      "data.validation", "empty",
      absl::StrCat("a token file, since train.validate_every is ", message.train().validate_every(),
                   " and data.text is empty"));
  for (const std::string& text : data.text()) {
    checks.Require(!text.empty(), "an entry of data.text", "empty", "the path of a text file");
  }
  checks.Require(!data.tokenizer().empty(), "data.tokenizer", "empty",
                 "\"bytes\" or the path of a tokenizer");
  checks.Require(data.tokenizer() != "bytes" || message.model().vocabulary() >= 257,
                 "model.vocabulary", message.model().vocabulary(),
                 "at least 257 with data.tokenizer \"bytes\"");
  checks.Require(data.validation_fraction() >= 0 && data.validation_fraction() < 1,
                 "data.validation_fraction", data.validation_fraction(), "from 0 to below 1");
  checks.NotNegative("data.text_bytes", static_cast<double>(data.text_bytes()));
  checks.Require(!data.directory().empty(), "data.directory", "empty", "the path of a directory");
  if (!checks.ok()) return checks.status();

  DataConfig config;
  config.train = data.train();
  config.validation = data.validation();
  for (const proto::Data::Source& source : data.blend()) {
    config.blend.push_back({source.path(), source.weight()});
  }
  config.tokenizer = data.tokenizer();
  config.text.assign(data.text().begin(), data.text().end());
  config.validation_fraction = data.validation_fraction();
  config.text_bytes = data.text_bytes();
  config.directory = data.directory();
  config.document_mask = data.document_mask();
  config.seed = data.seed();
  return config;
}

void CheckDecay(const std::string& path, double value, JobChecks* checks) {
  checks->Require(value >= 0 && value < 1, path, value, "from 0 to below 1");
}

absl::StatusOr<OptimizerConfig> ToOptimizer(const proto::Optimizer& optimizer) {
  JobChecks checks;
  checks.Positive("optimizer.learning_rate", optimizer.learning_rate());
  checks.NotNegative("optimizer.weight_decay", optimizer.weight_decay());
  checks.NotNegative("optimizer.clip", optimizer.clip());
  CheckDecay("optimizer.momentum", optimizer.momentum(), &checks);
  checks.Between("optimizer.newton_schulz_steps", optimizer.newton_schulz_steps(), int64_t{1},
                 int64_t{100});
  CheckDecay("optimizer.beta1", optimizer.beta1(), &checks);
  CheckDecay("optimizer.beta2", optimizer.beta2(), &checks);
  checks.Positive("optimizer.epsilon", optimizer.epsilon());
  if (!checks.ok()) return checks.status();

  OptimizerConfig config;
  config.muon = optimizer.kind() == proto::Optimizer::MUON;
  config.learning_rate = optimizer.learning_rate();
  config.weight_decay = optimizer.weight_decay();
  config.clip = optimizer.clip();
  config.momentum = optimizer.momentum();
  config.newton_schulz_steps = optimizer.newton_schulz_steps();
  config.beta1 = optimizer.beta1();
  config.beta2 = optimizer.beta2();
  config.epsilon = optimizer.epsilon();
  return config;
}

absl::StatusOr<ScheduleConfig> ToSchedule(const proto::Schedule& schedule) {
  JobChecks checks;
  checks.Between("schedule.warmup_fraction", schedule.warmup_fraction(), 0.0, 1.0);
  checks.Between("schedule.final_fraction", schedule.final_fraction(), 0.0, 1.0);
  checks.Between("schedule.decay_fraction", schedule.decay_fraction(), 0.0, 1.0);
  const bool decays = schedule.kind() == proto::Schedule::WARMUP_STABLE_DECAY;
  checks.Require(!decays || schedule.warmup_fraction() + schedule.decay_fraction() <= 1,
                 "schedule.decay_fraction", schedule.decay_fraction(),
                 absl::StrCat("at most 1 less schedule.warmup_fraction, which is ",
                              schedule.warmup_fraction()));
  if (!checks.ok()) return checks.status();

  ScheduleConfig config;
  config.kind = decays ? ScheduleKind::kWarmupStableDecay : ScheduleKind::kCosine;
  config.warmup_fraction = schedule.warmup_fraction();
  config.final_fraction = schedule.final_fraction();
  config.decay_fraction = schedule.decay_fraction();
  return config;
}

absl::StatusOr<CheckpointConfig> ToCheckpoint(const proto::Checkpoint& checkpoint) {
  JobChecks checks;
  checks.Between("checkpoint.every", checkpoint.every(), int64_t{0}, kMaximumCount);
  checks.Between("checkpoint.keep", checkpoint.keep(), int64_t{0}, kMaximumCount);
  checks.Between("checkpoint.keep_every", checkpoint.keep_every(), int64_t{0}, kMaximumCount);
  if (!checks.ok()) return checks.status();
  const int64_t every = checkpoint.every();
  checks.Require(
      checkpoint.keep_every() == 0 || (every > 0 && checkpoint.keep_every() % every == 0),
      "checkpoint.keep_every", checkpoint.keep_every(),
      absl::StrCat("a multiple of checkpoint.every, which is ", every,
                   ", or 0 to keep none besides"));
  if (!checks.ok()) return checks.status();
  return CheckpointConfig{.every = every,
                          .keep = checkpoint.keep(),
                          .keep_every = checkpoint.keep_every(),
                          .async = checkpoint.async()};
}

absl::StatusOr<DebugConfig> ToDebug(const proto::Debug& debug, int64_t steps) {
  JobChecks checks;
  checks.Between("debug.dump_step", debug.dump_step(), int64_t{0}, kMaximumCount);
  checks.Require(debug.dump_step() <= steps, "debug.dump_step", debug.dump_step(),
                 absl::StrCat("at most train.steps, which is ", steps));
  checks.Between("debug.timeline_step", debug.timeline_step(), int64_t{0}, steps);
  if (!checks.ok()) return checks.status();
  return DebugConfig{.dump_step = debug.dump_step(),
                     .dump_dir = debug.dump_dir(),
                     .timeline_step = debug.timeline_step(),
                     .selection_file = debug.selection_file()};
}

// Rows of a mixture of experts are numbered in int32.
absl::Status CheckExpertRows(const ModelConfig& model, const TrainConfig& train) {
  if (!model.plan.has_experts()) return absl::OkStatus();
  JobChecks checks;
  const int64_t tokens = train.micro_batch * train.sequence_length;
  const int64_t most_rows = std::numeric_limits<int32_t>::max();
  checks.Require(model.routed <= most_rows / tokens, "model.routed", model.routed,
                 absl::StrCat("at most ", most_rows / tokens, " with micro-batches of ", tokens,
                              " tokens, so that their experts have at most ", most_rows, " rows"));
  return checks.status();
}

absl::Status CheckName(const std::string& name) {
  JobChecks checks;
  checks.Require(!name.empty(), "name", "empty", "a name without '/', since it names files");
  checks.Require(name.find('/') == std::string::npos, "name", name,
                 "a name without '/', since it names files");
  return checks.status();
}

}  // namespace

absl::StatusOr<Job> ToJob(proto::Job* message) {
  FATHOM_RETURN_IF_ERROR(CheckName(message->name()));
  FATHOM_RETURN_IF_ERROR(CheckPresence(message));
  const bool tokenizer_is_set = message->data().has_tokenizer();
  FillDefaults(message);
  proto::Train* train = message->mutable_train();
  if (train->output().empty()) train->set_output("runs/" + message->name());

  Job job;
  job.name = message->name();
  FATHOM_ASSIGN_OR_RETURN(job.train, ToTrain(message->train()));
  FATHOM_ASSIGN_OR_RETURN(job.model, ToModelConfig(message->model(), job.train.sequence_length));
  FATHOM_RETURN_IF_ERROR(CheckExpertRows(job.model, job.train));
  FATHOM_ASSIGN_OR_RETURN(job.parallel, ToParallel(message->parallel()));
  FATHOM_ASSIGN_OR_RETURN(job.data, ToData(*message));
  job.data.tokenizer_is_set = tokenizer_is_set;
  FATHOM_ASSIGN_OR_RETURN(job.optimizer, ToOptimizer(message->optimizer()));
  FATHOM_ASSIGN_OR_RETURN(job.schedule, ToSchedule(message->schedule()));
  FATHOM_ASSIGN_OR_RETURN(job.checkpoint, ToCheckpoint(message->checkpoint()));
  job.metrics.tensorboard = message->metrics().tensorboard();
  FATHOM_ASSIGN_OR_RETURN(job.debug, ToDebug(message->debug(), job.train.steps));
  JobChecks checks;
  checks.Between("device.threads", message->device().threads(), int64_t{0}, kMaximumThreads);
  if (!checks.ok()) return checks.status();
  job.device.threads = static_cast<int>(message->device().threads());
  google::protobuf::TextFormat::PrintToString(*message, &job.text);
  return job;
}

}  // namespace fathom
