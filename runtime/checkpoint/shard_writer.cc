#include "runtime/checkpoint/shard_writer.h"

#include <cstdio>
#include <map>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/block_writer.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {
namespace {

std::string ShardName(TensorKind kind, int rank) {
  char name[64];
  std::snprintf(name, sizeof(name), "%s_%05d.safetensors",
                kind == TensorKind::kWeight ? "weights" : "optimizer", rank);
  return name;
}

// The piece as its file has it.
NamedArray ArrayOf(const ShardPiece& piece, std::map<std::string, int>* uses) {
  const int use = ++(*uses)[piece.name];
  const Shape box = piece.slice.part.ShapeOf(piece.whole);
  const bool whole_box = piece.slice.range == ElementRange{0, box.elements()};
  return {.name = use == 1 ? piece.name : absl::StrCat(piece.name, "#", use),
          .dtype = piece.dtype,
          .shape = whole_box ? box : Shape{piece.slice.elements()},
          .data = piece.data};
}

// Writes the pieces of one kind and adds them to `part`.
absl::Status WriteShard(FileSystem& files, const std::string& directory, const std::string& name,
                        const std::vector<ShardPiece>& pieces, const std::vector<size_t>& chosen,
                        const PieceLoader& load, Manifest* part) {
  std::vector<NamedArray> arrays;
  std::map<std::string, int> uses;
  for (const size_t i : chosen) arrays.push_back(ArrayOf(pieces[i], &uses));
  ArrayLoader load_array;
  if (load) load_array = [&](size_t i) { return load(chosen[i]); };
  FATHOM_ASSIGN_OR_RETURN(auto opened, files.OpenForWrite(JoinPath(directory, name)));
  BlockWriter file(std::move(opened));
  FATHOM_RETURN_IF_ERROR(WriteSafetensors(file, arrays, {{"format", "pt"}}, load_array));
  FATHOM_RETURN_IF_ERROR(file.Sync());
  FATHOM_RETURN_IF_ERROR(file.Close());

  const int number = static_cast<int>(part->files.size());
  part->files.push_back({name, file.size(), file.blocks()});
  int64_t offset = file.size();
  for (const NamedArray& array : arrays) offset -= array.bytes();
  for (const size_t i : chosen) {
    const ShardPiece& piece = pieces[i];
    part->tensors.push_back({.name = piece.name,
                             .kind = piece.kind,
                             .dtype = piece.dtype,
                             .shape = piece.whole,
                             .slices = {{number, offset, piece.slice}}});
    offset += piece.bytes();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Manifest> WriteShards(FileSystem& files, const std::string& directory, int rank,
                                     const std::vector<ShardPiece>& pieces,
                                     const PieceLoader& load) {
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(directory));
  Manifest part;
  for (const TensorKind kind : {TensorKind::kWeight, TensorKind::kOptimizer}) {
    std::vector<size_t> chosen;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].kind == kind) chosen.push_back(i);
    }
    if (chosen.empty()) continue;
    FATHOM_RETURN_IF_ERROR(
        WriteShard(files, directory, ShardName(kind, rank), pieces, chosen, load, &part));
  }
  FATHOM_RETURN_IF_ERROR(files.SyncDirectory(directory));
  return part;
}

}  // namespace fathom
