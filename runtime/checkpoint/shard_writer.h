#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/manifest.h"

namespace fathom {

// A slice of a logical tensor that a rank saves.
struct ShardPiece {
  std::string name;
  TensorKind kind = TensorKind::kWeight;
  DType dtype = DType::kFloat32;
  Shape whole;  // of the tensor
  TensorSlice slice;
  const void* data = nullptr;  // in host memory, not owned

  int64_t bytes() const { return slice.elements() * SizeOf(dtype); }
};

// The data of piece `i`, in host memory and valid until the next call. Pieces are asked for once
// each, weights first, in order. Empty: their own `data`.
using PieceLoader = std::function<absl::StatusOr<const void*>(size_t i)>;

// Writes one rank's pieces to DIRECTORY, which it creates when needed, and makes them durable:
// weights_RRRRR.safetensors and optimizer_RRRRR.safetensors, each only when it holds something. The
// rank's part of the manifest. A piece that is a box has the box's shape in its file, any other one
// is flat; a second piece of one tensor is called "NAME#2".
absl::StatusOr<Manifest> WriteShards(FileSystem& files, const std::string& directory, int rank,
                                     const std::vector<ShardPiece>& pieces,
                                     const PieceLoader& load = {});

}  // namespace fathom
