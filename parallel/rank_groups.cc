#include "parallel/rank_groups.h"

#include "core/status.h"
#include "parallel/dry_communicator.h"
#include "parallel/local_communicator.h"

namespace fathom {

absl::StatusOr<std::unique_ptr<RankGroups>> RankGroups::Create(Communicator& world,
                                                               const MeshSizes& sizes,
                                                               const ExpertSizes& experts) {
  FATHOM_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(world.size(), sizes));
  const int rank = world.rank();
  std::unique_ptr<RankGroups> groups(new RankGroups(mesh, rank));
  groups->world_ = &world;
  world.set_rank_label(absl::StrCat("rank ", rank, " (", groups->coordinates_.ToString(), ")"));
  const auto split = [&](MeshAxes axis, const char* name) {
    return world.Split(mesh.ColorOf(rank, axis), rank, name);
  };
  FATHOM_ASSIGN_OR_RETURN(groups->tensor_, split(kTensorAxis, "tensor"));
  FATHOM_ASSIGN_OR_RETURN(groups->data_, split(kDataAxis, "data"));
  FATHOM_ASSIGN_OR_RETURN(groups->pipeline_, split(kPipelineAxis, "pipeline"));
  const ExpertPlace place = mesh.ExpertPlaceOf(rank, experts);
  FATHOM_ASSIGN_OR_RETURN(groups->expert_, world.Split(place.group_color, rank, "expert"));
  FATHOM_ASSIGN_OR_RETURN(groups->expert_replicas_,
                          world.Split(place.replica_color, rank, "expert replicas"));
  groups->SetExpertTensor(experts);
  return groups;
}

std::unique_ptr<RankGroups> RankGroups::Alone() {
  std::unique_ptr<RankGroups> groups(new RankGroups(*Mesh::Create(1, {}), 0));
  groups->owned_world_ = NewLocalCommunicator();
  groups->world_ = groups->owned_world_.get();
  groups->tensor_ = NewLocalCommunicator();
  groups->data_ = NewLocalCommunicator();
  groups->pipeline_ = NewLocalCommunicator();
  groups->expert_ = NewLocalCommunicator();
  groups->expert_replicas_ = NewLocalCommunicator();
  groups->SetExpertTensor({});
  return groups;
}

void RankGroups::SetExpertTensor(const ExpertSizes& experts) {
  if (!experts.over_tensor) alone_ = NewLocalCommunicator();
  expert_tensor_ = experts.over_tensor ? tensor_.get() : alone_.get();
}

absl::StatusOr<std::unique_ptr<RankGroups>> RankGroups::Dry(const MeshSizes& sizes, int rank,
                                                            const ExpertSizes& experts) {
  const int world = static_cast<int>(sizes.product());
  FATHOM_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(world, sizes));
  std::unique_ptr<RankGroups> groups(new RankGroups(mesh, rank));
  const MeshCoordinates& at = groups->coordinates_;
  groups->owned_world_ = NewDryCommunicator(rank, world, "world");
  groups->world_ = groups->owned_world_.get();
  groups->tensor_ = NewDryCommunicator(at.tensor, sizes.tensor, "tensor");
  groups->data_ = NewDryCommunicator(at.data, sizes.data, "data");
  groups->pipeline_ = NewDryCommunicator(at.pipeline, sizes.pipeline, "pipeline");
  const ExpertPlace place = mesh.ExpertPlaceOf(rank, experts);
  groups->expert_ = NewDryCommunicator(place.rank, experts.expert, "expert");
  groups->expert_replicas_ = NewDryCommunicator(place.replica, place.replicas, "expert replicas");
  groups->SetExpertTensor(experts);
  return groups;
}

void RankGroups::set_log(std::shared_ptr<CommunicationLog> log) {
  for (Communicator* group : {world_, tensor_.get(), data_.get(), pipeline_.get(), expert_.get(),
                              expert_replicas_.get()}) {
    group->set_log(log);
  }
}

}  // namespace fathom
