#include "parallel/mesh.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/status.h"

namespace fathom {
namespace {

// One axis of a mesh: its flag, its size, and the distance in rank between neighbours on it.
struct Axis {
  MeshAxes flag;
  int size;
  int stride;
};

// Fastest first.
std::array<Axis, 4> AxesOf(const MeshSizes& sizes) {
  return {{{kTensorAxis, sizes.tensor, 1},
           {kContextAxis, sizes.context, sizes.tensor},
           {kDataAxis, sizes.data, sizes.tensor * sizes.context},
           {kPipelineAxis, sizes.pipeline, sizes.tensor * sizes.context * sizes.data}}};
}

// "WHAT VALUE cannot be divided by DIVISOR_NAME DIVISOR (mesh ...)" unless it can.
absl::Status CheckDivides(const MeshSizes& sizes, const std::string& what, int64_t value,
                          const std::string& divisor_name, int64_t divisor) {
  if (divisor >= 1 && value % divisor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", value, " is not a multiple of ",
                                                 divisor_name, " = ", divisor,
                                                 " (mesh: ", sizes.ToString(), ")"));
}

absl::Status CheckTensor(const MeshSizes& sizes, const LayoutDemands& demands) {
  FATHOM_RETURN_IF_ERROR(
      CheckDivides(sizes, "the number of query heads", demands.heads, "tensor", sizes.tensor));
  if (demands.kv_heads % sizes.tensor != 0 && sizes.tensor % demands.kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", sizes.tensor, " neither divides the number of key/value heads ",
                     demands.kv_heads, " nor is a multiple of it (mesh: ", sizes.ToString(), ")"));
  }
  FATHOM_RETURN_IF_ERROR(CheckDivides(sizes, "the FFN width", demands.ffn, "tensor", sizes.tensor));
  FATHOM_RETURN_IF_ERROR(CheckDivides(sizes, "the sequence length", demands.sequence_length,
                                      "context", sizes.context));
  if (!demands.sequence_parallel) return absl::OkStatus();
  return CheckDivides(sizes, "the sequence length", demands.sequence_length,
                      absl::StrCat("context ", sizes.context, " x tensor ", sizes.tensor),
                      int64_t{1} * sizes.context * sizes.tensor);
}

absl::Status CheckBatch(const MeshSizes& sizes, const LayoutDemands& demands) {
  FATHOM_RETURN_IF_ERROR(
      CheckDivides(sizes, "the global batch", demands.global_batch,
                   absl::StrCat("data ", sizes.data, " x micro-batch ", demands.micro_batch),
                   sizes.data * demands.micro_batch));
  const int64_t micro_batches = demands.global_batch / (sizes.data * demands.micro_batch);
  const std::string what =
      absl::StrCat("the number of micro-batches per replica, global batch ", demands.global_batch,
                   " / (data ", sizes.data, " x micro-batch ", demands.micro_batch, ") =");
  FATHOM_RETURN_IF_ERROR(CheckDivides(sizes, what, micro_batches, "lanes", demands.lanes));
  if (demands.chunks == 1) return absl::OkStatus();
  return CheckDivides(sizes, what, micro_batches, "pipeline, as interleaved stages need,",
                      sizes.pipeline);
}

absl::Status CheckExperts(const MeshSizes& sizes, const LayoutDemands& demands) {
  if (demands.experts == 0) {
    if (demands.expert == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("expert is ", demands.expert, ", but the model has no experts: it must be 1"));
  }
  FATHOM_RETURN_IF_ERROR(
      CheckDivides(sizes, "the number of experts", demands.experts, "expert", demands.expert));
  FATHOM_RETURN_IF_ERROR(CheckDivides(sizes, "the width of the shared experts", demands.shared_ffn,
                                      "tensor", sizes.tensor));
  if (!demands.experts_over_tensor) {
    return CheckDivides(sizes, absl::StrCat("data ", sizes.data, " x tensor ", sizes.tensor, " ="),
                        int64_t{1} * sizes.data * sizes.tensor, "expert", demands.expert);
  }
  FATHOM_RETURN_IF_ERROR(
      CheckDivides(sizes, "the width of an expert", demands.expert_ffn, "tensor", sizes.tensor));
  return CheckDivides(sizes, "with experts over the tensor ranks, data", sizes.data, "expert",
                      demands.expert);
}

}  // namespace

std::string MeshSizes::ToString() const {
  return absl::StrCat("pipeline ", pipeline, " x data ", data, " x context ", context, " x tensor ",
                      tensor, " = ", product());
}

std::string MeshCoordinates::ToString() const {
  return absl::StrCat("pipeline ", pipeline, ", data ", data, ", context ", context, ", tensor ",
                      tensor);
}

absl::StatusOr<Mesh> Mesh::Create(int world, const MeshSizes& sizes) {
  for (const Axis& axis : AxesOf(sizes)) {
    if (axis.size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("every factor of ", sizes.ToString(), " must be 1 or more"));
    }
  }
  if (sizes.product() != world) {
    return absl::InvalidArgumentError(absl::StrCat("world ", world, " is not ", sizes.ToString()));
  }
  return Mesh(world, sizes);
}

MeshCoordinates Mesh::CoordinatesOf(int rank) const {
  FATHOM_CHECK(rank >= 0 && rank < world_) << "rank " << rank << " of " << world_;
  const std::array<Axis, 4> axes = AxesOf(sizes_);
  const auto coordinate = [&](int i) { return rank / axes[i].stride % axes[i].size; };
  return {.pipeline = coordinate(3),
          .data = coordinate(2),
          .context = coordinate(1),
          .tensor = coordinate(0)};
}

int Mesh::RankOf(const MeshCoordinates& c) const {
  FATHOM_CHECK(c.pipeline >= 0 && c.pipeline < sizes_.pipeline && c.data >= 0 &&
               c.data < sizes_.data && c.context >= 0 && c.context < sizes_.context &&
               c.tensor >= 0 && c.tensor < sizes_.tensor)
      << c.ToString() << " in " << sizes_.ToString();
  return ((c.pipeline * sizes_.data + c.data) * sizes_.context + c.context) * sizes_.tensor +
         c.tensor;
}

int Mesh::IndexInGroup(int rank, MeshAxes axes) const {
  int index = 0;
  int scale = 1;
  for (const Axis& axis : AxesOf(sizes_)) {
    if ((axes & axis.flag) == 0) continue;
    index += rank / axis.stride % axis.size * scale;
    scale *= axis.size;
  }
  return index;
}

int Mesh::ColorOf(int rank, MeshAxes axes) const {
  return IndexInGroup(rank, ~axes & (kTensorAxis | kContextAxis | kDataAxis | kPipelineAxis));
}

ExpertPlace Mesh::ExpertPlaceOf(int rank, const ExpertSizes& experts) const {
  FATHOM_CHECK(sizes_.context == 1);
  const MeshAxes axes = experts.over_tensor ? kDataAxis : kDataAxis | kTensorAxis;
  const int members = sizes_.data * (experts.over_tensor ? 1 : sizes_.tensor);
  FATHOM_CHECK(experts.expert >= 1 && members % experts.expert == 0)
      << experts.expert << " expert ranks in " << sizes_.ToString();
  const int index = IndexInGroup(rank, axes);
  ExpertPlace place{.rank = index % experts.expert,
                    .replica = index / experts.expert,
                    .replicas = members / experts.expert};
  const int color = ColorOf(rank, axes);
  place.group_color = color * place.replicas + place.replica;
  place.replica_color = color * experts.expert + place.rank;
  return place;
}

std::vector<int> Mesh::GroupOf(int rank, MeshAxes axes) const {
  FATHOM_CHECK(rank >= 0 && rank < world_) << "rank " << rank << " of " << world_;
  std::vector<int> members;
  const int color = ColorOf(rank, axes);
  for (int other = 0; other < world_; ++other) {
    if (ColorOf(other, axes) == color) members.push_back(other);
  }
  return members;
}

absl::Status CheckLayout(const MeshSizes& sizes, const LayoutDemands& demands) {
  FATHOM_RETURN_IF_ERROR(CheckTensor(sizes, demands));
  FATHOM_RETURN_IF_ERROR(CheckBatch(sizes, demands));
  if (demands.layers < sizes.pipeline * demands.chunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", demands.layers, " layers, but pipeline ", sizes.pipeline,
                     " x chunks ", demands.chunks, " needs at least ",
                     sizes.pipeline * demands.chunks, " (mesh: ", sizes.ToString(), ")"));
  }
  return CheckExperts(sizes, demands);
}

}  // namespace fathom
