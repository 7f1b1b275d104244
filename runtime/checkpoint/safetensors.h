#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/named_array.h"

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

// A safetensors file, mapped into memory. Thread-safe.
class SafetensorsFile {
 public:
  // Checks the whole header before anything is used: DataLoss, naming file and tensor, for one that
  // is damaged or whose tensors do not fill the data exactly; Unimplemented for other dtypes.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(FileSystem& files,
                                                               const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // In the order of their data. The data is valid while this object lives, but may be aligned to
  // single bytes only: copy it, or use Read.
  const std::vector<NamedArray>& tensors() const { return tensors_; }
  // Null when there is none of that name.
  const NamedArray* Find(const std::string& name) const;
  // Copies a tensor of exactly this dtype and shape. NotFound, or InvalidArgument naming both
  // dtypes or shapes.
  absl::Status Read(const std::string& name, DType dtype, const Shape& shape, void* out) const;

 private:
  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  std::map<std::string, std::string> metadata_;
  std::vector<NamedArray> tensors_;
  std::map<std::string, size_t> index_;
};

}  // namespace fathom
