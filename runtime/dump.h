#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/model/micro_batch.h"
#include "runtime/model/parameters.h"
#include "runtime/model/pass.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {

// Writes one training step whole, so that another program, layout or device can be compared with
// it. docs/formats.md describes the files. Calls in this order: Begin, AddMicroBatch for each
// micro-batch in the order of its samples, AddGradients, Finish. Everything is written to
// DIRECTORY.tmp, which Finish renames.
class StepDump {
 public:
  // `directory` may exist when CheckDirectory says so; an older dump in it is replaced by Finish.
  StepDump(FileSystem& files, std::string directory, const ModelConfig& model);

  // AlreadyExists when `directory` is there and holds anything but a dump.
  static absl::Status CheckDirectory(FileSystem& files, const std::string& directory);

  // Weights and optimizer state before the step.
  absl::Status Begin(const ParameterTable& parameters, const Optimizer& optimizer, Stream& stream);
  // Of a training pass whose layers have run. Enqueues copies: `pass` must stay as it is until the
  // stream has done them.
  void AddMicroBatch(const HostBatch& host, const Pass& pass);
  // The gradients of all micro-batches together, not clipped.
  absl::Status AddGradients(const ParameterTable& parameters, Stream& stream);
  // Weights after the step; `record`: the step's metrics, one JSON object.
  absl::Status Finish(const ParameterTable& parameters, Stream& stream, const std::string& record);

 private:
  // The selection of one sparse layer, micro-batch by micro-batch.
  struct LayerSelection {
    int64_t layer;
    int64_t tokens_per_sequence;             // k
    std::vector<std::vector<int32_t>> rows;  // of each micro-batch [B * k]
  };

  absl::Status WriteTensors(const std::string& name, const class HostTensors& tensors);
  absl::Status WriteTokens();
  absl::Status WriteSelection();
  absl::Status WriteWeights(const std::string& name, const ParameterTable& parameters,
                            Stream& stream);

  FileSystem& files_;
  std::string directory_;
  std::string temporary_;
  int64_t sequences_ = 0;
  int64_t length_ = 0;
  std::vector<int64_t> input_ids_, labels_, document_ids_;  // [sequences, length]
  bool packed_ = false;                                     // more documents than sequences
  std::vector<LayerSelection> selections_;
};

}  // namespace fathom
