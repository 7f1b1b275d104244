#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/named_array.h"
#include "runtime/checkpoint/tensor_source.h"

namespace fathom {

// The safetensors format: 8 bytes with the header's length N (little-endian), N bytes of JSON
// {"__metadata__": {string: string}, NAME: {"dtype", "shape", "data_offsets": [begin, end]}} padded
// with spaces, then the tensors' bytes. https://huggingface.co/docs/safetensors
// The dtypes F32, F64, BF16, I32 and I64 and up to four dims are supported.

// Writes such a file in one pass: all names first, then the tensors' data in the same order.
class SafetensorsWriter {
 public:
  // Writes the header. `data` of the tensors is not used; names must differ. `file` must outlive
  // the writer; syncing and closing it is left to the caller.
  static absl::StatusOr<SafetensorsWriter> Create(
      WritableFile& file, const std::vector<NamedArray>& tensors,
      const std::map<std::string, std::string>& metadata);

  // The next bytes of the data. All tensors together take as many as the header says.
  absl::Status Append(std::string_view data);
  // Checks that all data has been written.
  absl::Status Finish() const;

 private:
  SafetensorsWriter(WritableFile& file, int64_t bytes_left)
      : file_(&file), bytes_left_(bytes_left) {}
  WritableFile* file_;
  int64_t bytes_left_;
};

// Header and data of `tensors`; the data from `load`, unless it is empty.
absl::Status WriteSafetensors(WritableFile& file, const std::vector<NamedArray>& tensors,
                              const std::map<std::string, std::string>& metadata,
                              const ArrayLoader& load = {});

// A whole file under its final name: written aside, synced and renamed.
absl::Status WriteSafetensorsFile(FileSystem& files, const std::string& path,
                                  const std::vector<NamedArray>& tensors,
                                  const std::map<std::string, std::string>& metadata,
                                  const ArrayLoader& load = {});

// A safetensors file, mapped into memory. Thread-safe. The tensors' data is valid while this object
// lives, but may be aligned to single bytes only: copy it, or use Read.
class SafetensorsFile final : public TensorSource {
 public:
  // Checks the whole header before anything is used: DataLoss, naming file and tensor, for one that
  // is damaged or whose tensors do not fill the data exactly; Unimplemented for other dtypes.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(FileSystem& files,
                                                               const std::string& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  absl::Status ReadSlice(const NamedArray& tensor, const TensorSlice& slice,
                         void* out) const override;

 private:
  explicit SafetensorsFile(const std::string& path) : TensorSource(path) {}

  std::unique_ptr<ReadableFile> file_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace fathom
