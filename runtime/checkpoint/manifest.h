#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "parallel/mesh.h"
#include "runtime/checkpoint/slice.h"

namespace fathom {

// Files are checked block by block; the last block of a file may be shorter.
inline constexpr int64_t kBlockBytes = int64_t{1} << 20;

// A file of a checkpoint as its manifest records it.
struct ManifestFile {
  std::string name;
  int64_t size = 0;
  std::vector<uint64_t> blocks;  // XXH3 of each block
};

enum class TensorKind { kWeight, kOptimizer };

// Elements of a tensor that stand one after the other in a file.
struct ManifestSlice {
  int file = 0;        // place in Manifest::files
  int64_t offset = 0;  // of the first byte in the file
  TensorSlice slice;
};

// A logical tensor, each of whose elements is in one of its slices.
struct ManifestTensor {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::vector<ManifestSlice> slices;
};

// manifest.json of a checkpoint; or a rank's part of one, which has files and tensors alone.
struct Manifest {
  int64_t step = 0;
  int64_t consumed_sequences = 0;
  std::string job_text;
  MeshSizes mesh;  // of the ranks that wrote it
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
};

// JSON text that carries a checksum of itself.
std::string FormatManifest(const Manifest& manifest);

// The reverse. `path` is for messages. FailedPrecondition, naming both versions, for another
// version, DataLoss for damage: also for slices that do not add up to their tensors.
absl::StatusOr<Manifest> ParseManifest(const std::string& path, std::string_view text);

// A part as bytes that travel between ranks, and back. DataLoss when they are none.
std::string PackPart(const Manifest& part);
// Adds a part's files and slices. The ranks' parts in rank order give each tensor its slices.
absl::Status AddPart(std::string_view packed, Manifest* manifest);

}  // namespace fathom
