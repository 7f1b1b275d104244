#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"

namespace fathom {

// One step of training, as metrics.jsonl records it.
struct TrainRecord {
  int64_t step = 0;
  int64_t consumed_sequences = 0;
  double loss = 0;            // cross-entropy alone
  double auxiliary_loss = 0;  // the added sum, coefficients included
  double gradient_norm = 0;   // before clipping
  double learning_rate = 0;   // used in this step
  double tokens_per_second = 0;
  double seconds = 0;  // since the start
  // Of a model with experts, over its layers: by how much the busiest expert exceeds the mean, at
  // most, and how even the load is, at least (see kernels/experts.h, ExpertLoad).
  struct ExpertLoads {
    double violation = 0;
    double entropy = 1;
  };
  std::optional<ExpertLoads> experts;
};

// One validation.
struct ValidationRecord {
  int64_t step = 0;
  int64_t consumed_sequences = 0;
  double loss_topk = 0;    // selection as in training
  double loss_causal = 0;  // selection as in generation
  double seconds = 0;
};

// One line of JSON, without its end. Numbers have 17 significant digits, so they read back exactly;
// what is not finite becomes null, since JSON has no such numbers.
std::string FormatRecord(const TrainRecord& record);
std::string FormatRecord(const ValidationRecord& record);

// Appends records to a run's metrics.jsonl. Every line is handed to the system at once, so a killed
// process loses none that was written.
class MetricsWriter {
 public:
  // Starts an empty file.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Create(FileSystem& files,
                                                               const std::string& path);
  // Continues a file after a resume at `step`: first drops, atomically, all records of later steps
  // and what is no record, such as a torn last line. A missing file starts empty.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> OpenForResume(FileSystem& files,
                                                                      const std::string& path,
                                                                      int64_t step);

  absl::Status Write(const TrainRecord& record);
  absl::Status Write(const ValidationRecord& record);
  absl::Status Close();

 private:
  explicit MetricsWriter(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  std::unique_ptr<WritableFile> file_;
};

}  // namespace fathom
