#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace fathom {

// One rank's place in a mesh and its communicators: with all ranks, along each axis, and with those
// that have experts in common.
class RankGroups {
 public:
  // Called by all ranks of `world`, which outlives the object; blocks. InvalidArgument when the
  // sizes are not those of the world. `experts` as Mesh::ExpertPlaceOf wants them.
  static absl::StatusOr<std::unique_ptr<RankGroups>> Create(Communicator& world,
                                                            const MeshSizes& sizes,
                                                            const ExpertSizes& experts = {});
  // The only rank of a job.
  static std::unique_ptr<RankGroups> Alone();
  // Stands for `rank` on a dry device: nothing travels, but all is recorded and sized.
  static absl::StatusOr<std::unique_ptr<RankGroups>> Dry(const MeshSizes& sizes, int rank,
                                                         const ExpertSizes& experts = {});

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
  // The ranks that hold all experts of the stage together, whole or by the same part of their
  // width: tokens travel among them.
  Communicator& expert() { return *expert_; }
  // The ranks that hold copies of the same experts.
  Communicator& expert_replicas() { return *expert_replicas_; }
  // The ranks that hold parts of the same experts: the tensor ranks, or this one alone.
  Communicator& expert_tensor() { return *expert_tensor_; }

  // Of a parameter: the ranks that hold copies of it, and those that hold its other parts.
  Communicator& replicas(bool of_expert) { return of_expert ? *expert_replicas_ : *data_; }
  Communicator& parts(bool of_expert) { return of_expert ? *expert_tensor_ : *tensor_; }

 private:
  RankGroups(const Mesh& mesh, int rank) : mesh_(mesh), coordinates_(mesh.CoordinatesOf(rank)) {}
  void SetExpertTensor(const ExpertSizes& experts);

  Mesh mesh_;
  MeshCoordinates coordinates_;
  std::unique_ptr<Communicator> owned_world_;  // null: the caller's
  Communicator* world_ = nullptr;
  std::unique_ptr<Communicator> tensor_, data_, pipeline_, expert_, expert_replicas_;
  std::unique_ptr<Communicator> alone_;
  Communicator* expert_tensor_ = nullptr;  // tensor_ or alone_
};

}  // namespace fathom
