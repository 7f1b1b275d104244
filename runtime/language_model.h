#pragma once

#include <memory>

#include "core/arena.h"
#include "core/job.h"
#include "runtime/model/stage.h"

namespace fathom {

// A model on a device, with its parameters, its stream and the memory for one micro-batch.
class LanguageModel {
 public:
  // For sequences of `length` tokens. The parameters' contents are undefined. `with_gradients`: it
  // will be trained.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Create(const ModelConfig& config,
                                                               DType dtype, int64_t length,
                                                               Device& device, bool with_gradients);

  const ModelConfig& config() const { return stage_.config(); }
  int64_t length() const { return length_; }
  DType dtype() const { return dtype_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  Arena& arena() { return arena_; }
  ParameterTable& parameters() { return parameters_; }
  Stage& stage() { return stage_; }

 private:
  LanguageModel(const ModelConfig& config, DType dtype, int64_t length, Device& device);

  DType dtype_;
  int64_t length_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  ParameterTable parameters_;
  Stage stage_;
};

}  // namespace fathom
