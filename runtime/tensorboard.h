#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/metrics.h"

namespace fathom {

// CRC-32C (Castagnoli) of `data`.
uint32_t Crc32c(std::string_view data);

// One record of a TFRecord file: length, its masked checksum, `data`, its masked checksum.
std::string TfRecord(std::string_view data);

// Writes the numbers of metrics.jsonl for TensorBoard too: train/FIELD and validation/FIELD. Its
// scalars have 32 bits. Every start of a run writes a file of its own,
// events.out.tfevents.SECONDS.fathom, later than those of the directory by name, which is the order
// that TensorBoard reads them in; it begins by dropping what older files hold of later steps.
class EventWriter {
 public:
  // For a run that has finished `step` steps (0: a new one). `now`: seconds since 1970.
  static absl::StatusOr<std::unique_ptr<EventWriter>> Create(FileSystem& files,
                                                             const std::string& directory,
                                                             int64_t step, double now);

  // Handed to the system at once, like the lines of metrics.jsonl.
  absl::Status Write(const TrainRecord& record, double now);
  absl::Status Write(const ValidationRecord& record, double now);

 private:
  using Values = std::vector<std::pair<const char*, double>>;

  explicit EventWriter(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  absl::Status WriteValues(int64_t step, double now, const Values& values);

  std::unique_ptr<WritableFile> file_;
};

}  // namespace fathom
