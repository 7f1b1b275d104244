#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Which rank holds what. Pure arithmetic: nothing here talks to another rank.
namespace fathom {

// Ranks along each axis, and where a rank stands on them.
struct MeshSizes {
  int pipeline = 1;
  int data = 1;
  int context = 1;
  int tensor = 1;

  int64_t product() const { return int64_t{1} * pipeline * data * context * tensor; }
  // "pipeline 2 x data 2 x context 1 x tensor 3 = 12"
  std::string ToString() const;
  bool operator==(const MeshSizes&) const = default;
};

struct MeshCoordinates {
  int pipeline = 0;
  int data = 0;
  int context = 0;
  int tensor = 0;

  // "pipeline 1, data 0, context 0, tensor 2"
  std::string ToString() const;
  bool operator==(const MeshCoordinates&) const = default;
};

// Sets of axes, to be combined with |: the data and tensor ranks of a stage are the group
// kDataAxis | kTensorAxis.
using MeshAxes = unsigned;
inline constexpr MeshAxes kTensorAxis = 1;
inline constexpr MeshAxes kContextAxis = 2;
inline constexpr MeshAxes kDataAxis = 4;
inline constexpr MeshAxes kPipelineAxis = 8;

// How the experts of a stage lie on its data x tensor ranks. Ranks that follow one another share
// out the experts, so that with whole experts a group of them first fills the tensor ranks, which
// are near; further such groups hold copies.
struct ExpertSizes {
  int expert = 1;  // ranks that hold all experts together
  // Each expert is split over the tensor ranks by its width; the groups are of data ranks alone.
  // Else every rank holds whole experts.
  bool over_tensor = false;
};

// A rank's place among those that hold experts.
struct ExpertPlace {
  int rank = 0;      // which part of the experts it holds, of ExpertSizes::expert
  int replica = 0;   // which copy of that part
  int replicas = 1;  // how many copies there are
  // The same for all ranks that share out the experts with this one, or that hold the same copy of
  // one part, as Mesh::ColorOf.
  int group_color = 0;
  int replica_color = 0;
};

// World = pipeline x data x context x tensor, tensor fastest: ranks that differ in their tensor
// coordinate alone are neighbours. Immutable.
class Mesh {
 public:
  // InvalidArgument, with every factor, unless all sizes are at least 1 and their product is
  // `world`.
  static absl::StatusOr<Mesh> Create(int world, const MeshSizes& sizes);

  int world() const { return world_; }
  const MeshSizes& sizes() const { return sizes_; }

  MeshCoordinates CoordinatesOf(int rank) const;
  int RankOf(const MeshCoordinates& coordinates) const;

  // The ranks that share `rank`'s coordinates on all other axes, ascending, `rank` included.
  std::vector<int> GroupOf(int rank, MeshAxes axes) const;
  // The place of `rank` in that list.
  int IndexInGroup(int rank, MeshAxes axes) const;
  // The same number for the members of a group and different ones for different groups: the color
  // of Communicator::Split, with the rank as its key.
  int ColorOf(int rank, MeshAxes axes) const;
  // `experts.expert` divides the data x tensor ranks, or the data ranks with `over_tensor`; there
  // is one context rank.
  ExpertPlace ExpertPlaceOf(int rank, const ExpertSizes& experts) const;

 private:
  Mesh(int world, const MeshSizes& sizes) : world_(world), sizes_(sizes) {}

  int world_;
  MeshSizes sizes_;
};

// What a layout has to divide.
struct LayoutDemands {
  int64_t heads = 1;       // H
  int64_t kv_heads = 1;    // G
  int64_t ffn = 1;         // F
  int64_t experts = 0;     // 0: none
  int64_t expert_ffn = 0;  // width of an expert
  int64_t shared_ffn = 0;  // of the shared experts together
  int64_t layers = 1;
  int64_t sequence_length = 1;  // L
  bool sequence_parallel = false;
  int64_t global_batch = 1;  // sequences
  int64_t micro_batch = 1;   // sequences
  int64_t lanes = 1;
  int64_t chunks = 1;                // of layers per pipeline stage; above 1: interleaved
  int64_t expert = 1;                // expert-parallel size, folded over data x tensor
  bool experts_over_tensor = false;  // see ExpertSizes
};

// InvalidArgument for the first thing that `sizes` does not divide, naming both sides and all
// factors: H and F by tensor; G by tensor or, with K and V heads shared, tensor by G; L by context,
// and by context x tensor with sequence parallel; the global batch by data x micro-batch; the
// micro-batches of a replica by lanes, and by pipeline when interleaved; layers are at least
// pipeline x chunks; experts by expert, data x tensor by expert, the shared experts' width by
// tensor; with experts over tensor ranks, data by expert and an expert's width by tensor.
absl::Status CheckLayout(const MeshSizes& sizes, const LayoutDemands& demands);

}  // namespace fathom
