#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fathom {

// A file of a checkpoint as its manifest records it.
struct ManifestFile {
  std::string name;
  int64_t size = 0;
  uint64_t checksum = 0;  // XXH3 of its bytes
  int64_t tensors = 0;
};

// manifest.json of a checkpoint, without the tensors themselves.
struct Manifest {
  int64_t step = 0;
  int64_t consumed_sequences = 0;
  std::string job_text;
  std::vector<ManifestFile> files;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
};

// JSON text that carries a checksum of itself.
std::string FormatManifest(const Manifest& manifest);

// The reverse. `path` is for messages. FailedPrecondition for a newer version, DataLoss for damage.
absl::StatusOr<Manifest> ParseManifest(const std::string& path, std::string_view text);

}  // namespace fathom
