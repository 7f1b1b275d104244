#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/pipeline_schedule.h"
#include "core/plan.h"
#include "core/routing.h"

namespace fathom {

enum class Precision { kFloat32, kBFloat16, kFloat64 };
enum class ScheduleKind { kCosine, kWarmupStableDecay };

// The dtype of weights and activations in a precision.
DType ComputeDType(Precision precision);

struct ModelConfig {
  int64_t d = 0;         // model width
  int64_t heads = 0;     // H, query heads
  int64_t kv_heads = 0;  // G, key/value heads
  int64_t head_dim = 0;  // h; H*h may differ from d
  int64_t ffn = 0;       // F; may be 0 when every FFN is a mixture of experts
  int64_t vocabulary = 0;
  double theta = 1e6;  // base of the rotary angles
  double eps = 1e-6;   // of RMSNorm

  // Sparse layers.
  Gate gate = Gate::kXMod;
  double tau = 1;        // adjusted logit = logit - tau * count
  double increment = 1;  // added to a token's count when it is selected
  Alignment alignment = Alignment::kBiased;
  double routing_coefficient = 1e-4;  // of the auxiliary loss
  int64_t reset_every = 0;            // see MakeLayerPlan

  // Mixtures of experts.
  int64_t experts = 0;     // E, routed experts of a layer
  int64_t routed = 0;      // of them, those that each token goes to
  int64_t shared = 0;      // experts that every token goes to; one FFN of shared * expert_ffn
  int64_t expert_ffn = 0;  // width of one expert
  Scoring scoring = Scoring::kSigmoid;
  double balance_coefficient = 1e-4;  // of the balance loss
  double expert_bias_rate = 1e-3;     // by which the selection bias moves after a step; 0: never

  LayerPlan plan;
};

struct ParallelConfig {
  int64_t tensor = 1;
  bool sequence = false;
  int64_t pipeline = 1;
  int64_t data = 1;
  int64_t expert = 1;          // of the data x tensor ranks, those that share the experts
  bool expert_tensor = false;  // each expert is split over the tensor ranks, by its width
  int64_t lanes = 1;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t virtual_stages = 1;  // chunks of layers on each stage
  int64_t zero = 0;            // 1: the optimizer's state is split over the data ranks
  bool gradients_in_bfloat16 = false;
  int64_t bucket_elements = int64_t{1} << 24;  // of gradients that are reduced together

  int64_t ranks() const { return tensor * pipeline * data; }
};

// A token file of a blend.
struct BlendPart {
  std::string path;
  double weight = 1;  // its share of the samples is weight / (sum of weights)
};

// Text that a job without token files is trained on: the first one of `text` that exists is
// prepared on first use.
struct DataConfig {
  std::string train;             // a token file; empty: `blend`, or prepared from `text`
  std::string validation;        // likewise
  std::vector<BlendPart> blend;  // instead of `train`
  std::string tokenizer = "bytes";
  bool tokenizer_is_set = false;      // the job says it, rather than leaving it to the default
  std::vector<std::string> text;      // plain or compressed, in order of preference
  double validation_fraction = 0.01;  // the end of the text that is kept for validation
  int64_t text_bytes = 0;             // at most so much of the text is used; 0: all
  std::string directory = "data";     // where prepared token files are kept
  bool document_mask = false;
  uint64_t seed = 1;  // of the order of samples
};

struct TrainConfig {
  int64_t steps = 0;
  int64_t sequence_length = 0;  // L
  int64_t micro_batch = 1;      // B, sequences
  int64_t global_batch = 1;     // sequences per step
  uint64_t seed = 1;            // of the initial weights
  Precision precision = Precision::kFloat32;
  std::string init_from;             // safetensors with initial weights; empty: drawn from `seed`
  std::string output;                // the run's directory
  int64_t validate_every = 0;        // steps; 0: only before the first and after the last
  int64_t validation_sequences = 0;  // 0: the whole validation file
  double maximum_minutes = 0;        // 0: no limit
  int64_t watchdog_seconds = 60;
};

struct OptimizerConfig {
  double learning_rate = 3.2e-3;  // peak
  double weight_decay = 0.1;
  double clip = 1.0;  // of the gradient norm; 0: none
  // Muon, for the hidden matrices. With `muon` false AdamW takes them as well.
  bool muon = true;
  double momentum = 0.95;
  int64_t newton_schulz_steps = 5;
  // AdamW.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kCosine;
  double warmup_fraction = 0.01;
  double final_fraction = 0.1;
  double decay_fraction = 0.2;  // of the steps, at the end; WARMUP_STABLE_DECAY only
};

struct CheckpointConfig {
  int64_t every = 0;       // steps; 0: only at the end
  int64_t keep = 0;        // the newest ones that are kept; 0: all
  int64_t keep_every = 0;  // steps; every such checkpoint is kept besides
  bool async = true;
};

struct MetricsConfig {
  bool tensorboard = true;  // event files beside metrics.jsonl
};

struct DebugConfig {
  int64_t dump_step = 0;  // 0: none
  std::string dump_dir;
  int64_t timeline_step = 0;  // 0: none
  std::string selection_file;
};

struct DeviceConfig {
  int threads = 0;  // 0: all cores this process may use
};

// A job, validated. Immutable after ParseJob.
struct Job {
  std::string name;
  std::string text;  // the resolved job in text format, overrides applied, as checkpoints record it
  ModelConfig model;
  ParallelConfig parallel;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  DebugConfig debug;
  DeviceConfig device;
};

// Parses a job in protobuf text format (proto/job.proto), applies overrides "path.to.field=value"
// in order, and validates. InvalidArgument names the field, its value and what would be right.
// `name` is the job's name when the text has none (the file's stem).
absl::StatusOr<Job> ParseJob(const std::string& text, const std::string& name,
                             const std::vector<std::string>& overrides);

// The same, from a file. NotFound when there is none.
absl::StatusOr<Job> ReadJob(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace fathom
