#include "runtime/export.h"

#include "core/job.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {
namespace {

absl::Status CheckNew(FileSystem& files, const std::string& directory) {
  if (!files.Exists(directory)) return absl::OkStatus();
  if (files.IsDirectory(directory)) {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
    if (names.empty()) return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(directory, " exists already, and nothing is overwritten: name a new directory"));
}

absl::Status CheckPlan(const ModelConfig& model) {
  for (const PlannedLayer& layer : model.plan.layers) {
    if (layer.spec == LayerSpec()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("Hugging Face has no model for the plan ", ShortForm(model.plan.segments),
                     ", only for dense layers: use --format checkpoint"));
  }
  return absl::OkStatus();
}

std::string Qwen3Config(const Job& job, DType dtype) {
  const ModelConfig& model = job.model;
  const std::string type(Name(dtype));
  const nlohmann::ordered_json config = {
      {"architectures", {"Qwen3ForCausalLM"}},
      {"model_type", "qwen3"},
      {"hidden_size", model.d},
      {"intermediate_size", model.ffn},
      {"num_hidden_layers", model.plan.layers.size()},
      {"num_attention_heads", model.heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", model.head_dim},
      {"vocab_size", model.vocabulary},
      {"max_position_embeddings", job.train.sequence_length},
      {"rms_norm_eps", model.eps},
      // Older versions read the first, newer ones the second.
      {"rope_theta", model.theta},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.theta}}},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"attention_dropout", 0.0},
      {"initializer_range", 0.02},
      {"use_sliding_window", false},
      {"tie_word_embeddings", false},
      {"use_cache", true},
      {"torch_dtype", type},
      {"dtype", type}};
  return config.dump(2) + "\n";
}

// One tensor of `weights` is in memory at a time.
absl::Status WriteDirectory(FileSystem& files, const std::string& directory,
                            const TensorSource& weights, const std::string& config) {
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(directory));
  std::vector<char> data;
  const auto load = [&](size_t i) -> absl::StatusOr<const void*> {
    const NamedArray& tensor = weights.tensors()[i];
    data.resize(tensor.bytes());
    FATHOM_RETURN_IF_ERROR(
        weights.ReadSlice(tensor, TensorSlice::Whole(tensor.shape), data.data()));
    return data.data();
  };
  FATHOM_RETURN_IF_ERROR(WriteSafetensorsFile(files, JoinPath(directory, kModelFile),
                                              weights.tensors(), {{"format", "pt"}}, load));
  if (!config.empty()) {
    FATHOM_RETURN_IF_ERROR(WriteFileAtomically(files, JoinPath(directory, "config.json"), config));
  }
  return files.SyncDirectory(directory);
}

}  // namespace

absl::Status ExportWeights(FileSystem& files, const std::string& checkpoint,
                           const std::string& directory, ExportFormat format) {
  FATHOM_RETURN_IF_ERROR(CheckNew(files, directory));
  FATHOM_ASSIGN_OR_RETURN(const std::string found, FindCheckpoint(files, checkpoint));
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint opened, OpenCheckpoint(files, found));
  const TensorSource& weights = *opened.weights;
  std::string config;
  if (format == ExportFormat::kHuggingFace) {
    FATHOM_ASSIGN_OR_RETURN(const Job job, ParseJob(opened.manifest->job_text, found, {}));
    FATHOM_RETURN_IF_ERROR(CheckPlan(job.model));
    const std::vector<NamedArray>& tensors = weights.tensors();
    config = Qwen3Config(job, tensors.empty() ? DType::kFloat32 : tensors[0].dtype);
  }
  const std::string temporary = TemporaryPath(directory);
  absl::Status status = WriteDirectory(files, temporary, weights, config);
  if (status.ok()) status = files.Rename(temporary, directory);
  if (!status.ok()) files.RemoveAll(temporary).IgnoreError();
  return status;
}

}  // namespace fathom
