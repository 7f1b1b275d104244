#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/job.h"

namespace fathom {

// Of the model in a Hugging Face directory.
inline constexpr char kHuggingFaceConfigFile[] = "config.json";

// What such a file says, as far as it is one of Fathom's models.
struct HuggingFaceConfig {
  ModelConfig model;      // sizes are those of the file; whether a job may have them is not checked
  int64_t positions = 0;  // max_position_embeddings; 0: not given
  bool tied = false;      // the head is the embedding
};

// Reads the text of a config.json: Qwen3ForCausalLM, whose layers are dense, or Glm4MoeForCausalLM,
// whose layers are mixtures of experts after `first_k_dense_replace` dense ones. A field that is
// left out has the value that transformers gives it. InvalidArgument, in one sentence that begins
// with `path`, for other architectures, for fields that are missing, and for values that make it
// another function than Fathom's layers compute.
absl::StatusOr<HuggingFaceConfig> ParseHuggingFaceConfig(const std::string& text,
                                                         const std::string& path);

// The text of a config.json with which transformers (4 and 5) computes the same function; `dtype`
// is that of the weights. Dense layers are Qwen3ForCausalLM, mixtures of experts, alone or after
// dense layers, Glm4MoeForCausalLM. InvalidArgument, in one sentence, for other models.
absl::StatusOr<std::string> MakeHuggingFaceConfig(const ModelConfig& model, int64_t positions,
                                                  DType dtype);

}  // namespace fathom
