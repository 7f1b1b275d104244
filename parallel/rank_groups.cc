#include "parallel/rank_groups.h"

#include "core/status.h"
#include "parallel/dry_communicator.h"
#include "parallel/local_communicator.h"

namespace fathom {

absl::StatusOr<std::unique_ptr<RankGroups>> RankGroups::Create(Communicator& world,
                                                               const MeshSizes& sizes) {
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
  return groups;
}

std::unique_ptr<RankGroups> RankGroups::Alone() {
  std::unique_ptr<RankGroups> groups(new RankGroups(*Mesh::Create(1, {}), 0));
  groups->owned_world_ = NewLocalCommunicator();
  groups->world_ = groups->owned_world_.get();
  groups->tensor_ = NewLocalCommunicator();
  groups->data_ = NewLocalCommunicator();
  groups->pipeline_ = NewLocalCommunicator();
  return groups;
}

absl::StatusOr<std::unique_ptr<RankGroups>> RankGroups::Dry(const MeshSizes& sizes, int rank) {
  const int world = static_cast<int>(sizes.product());
  FATHOM_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(world, sizes));
  std::unique_ptr<RankGroups> groups(new RankGroups(mesh, rank));
  const MeshCoordinates& at = groups->coordinates_;
  groups->owned_world_ = NewDryCommunicator(rank, world, "world");
  groups->world_ = groups->owned_world_.get();
  groups->tensor_ = NewDryCommunicator(at.tensor, sizes.tensor, "tensor");
  groups->data_ = NewDryCommunicator(at.data, sizes.data, "data");
  groups->pipeline_ = NewDryCommunicator(at.pipeline, sizes.pipeline, "pipeline");
  return groups;
}

void RankGroups::set_log(std::shared_ptr<CommunicationLog> log) {
  for (Communicator* group : {world_, tensor_.get(), data_.get(), pipeline_.get()}) {
    group->set_log(log);
  }
}

}  // namespace fathom
