#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace fathom {

// One rank's place in a mesh and its communicators: with all ranks, and along each axis.
class RankGroups {
 public:
  // Called by all ranks of `world`, which outlives the object; blocks. InvalidArgument when the
  // sizes are not those of the world.
  static absl::StatusOr<std::unique_ptr<RankGroups>> Create(Communicator& world,
                                                            const MeshSizes& sizes);
  // The only rank of a job.
  static std::unique_ptr<RankGroups> Alone();
  // Stands for `rank` on a dry device: nothing travels, but all is recorded and sized.
  static absl::StatusOr<std::unique_ptr<RankGroups>> Dry(const MeshSizes& sizes, int rank);

  const Mesh& mesh() const { return mesh_; }
  const MeshSizes& sizes() const { return mesh_.sizes(); }
  const MeshCoordinates& coordinates() const { return coordinates_; }
  int rank() const { return world_->rank(); }
  // Rank 0, which alone writes files and speaks to the user.
  bool first() const { return rank() == 0; }

  // Records what all of this rank's groups do from now on; null: nothing.
  void set_log(std::shared_ptr<CommunicationLog> log);

  Communicator& world() { return *world_; }
  Communicator& tensor() { return *tensor_; }
  Communicator& data() { return *data_; }
  // Of stages: transfers of activations and gradients.
  Communicator& pipeline() { return *pipeline_; }

 private:
  RankGroups(const Mesh& mesh, int rank) : mesh_(mesh), coordinates_(mesh.CoordinatesOf(rank)) {}

  Mesh mesh_;
  MeshCoordinates coordinates_;
  std::unique_ptr<Communicator> owned_world_;  // null: the caller's
  Communicator* world_ = nullptr;
  std::unique_ptr<Communicator> tensor_, data_, pipeline_;
};

}  // namespace fathom
