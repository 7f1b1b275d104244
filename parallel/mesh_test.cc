#include "parallel/mesh.h"

#include <map>
#include <set>

#include "gtest/gtest.h"

namespace fathom {
namespace {

Mesh MakeMesh(const MeshSizes& sizes) {
  auto mesh = Mesh::Create(static_cast<int>(sizes.product()), sizes);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *mesh;
}

void ExpectRefused(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), message);
}

TEST(MeshTest, TensorIsFastest) {
  const Mesh mesh = MakeMesh({.pipeline = 2, .data = 3, .context = 2, .tensor = 4});
  int rank = 0;
  for (int p = 0; p < 2; ++p) {
    for (int d = 0; d < 3; ++d) {
      for (int c = 0; c < 2; ++c) {
        for (int t = 0; t < 4; ++t, ++rank) {
          const MeshCoordinates expected{.pipeline = p, .data = d, .context = c, .tensor = t};
          EXPECT_EQ(mesh.CoordinatesOf(rank), expected);
          EXPECT_EQ(mesh.RankOf(expected), rank);
        }
      }
    }
  }
}

TEST(MeshTest, GroupsOfEightRanks) {
  const Mesh mesh = MakeMesh({.pipeline = 2, .data = 2, .tensor = 2});
  EXPECT_EQ(mesh.GroupOf(5, kTensorAxis), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.GroupOf(5, kContextAxis), (std::vector<int>{5}));
  EXPECT_EQ(mesh.GroupOf(5, kDataAxis), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.GroupOf(5, kPipelineAxis), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.GroupOf(5, kDataAxis | kTensorAxis), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(mesh.GroupOf(5, kPipelineAxis | kTensorAxis), (std::vector<int>{0, 1, 4, 5}));
}

// By the coordinates, for every set of axes: groups are what their definition says, every rank is
// in one of them, colors tell them apart.
TEST(MeshTest, GroupsCoverTheWorld) {
  const Mesh mesh = MakeMesh({.pipeline = 3, .data = 2, .context = 2, .tensor = 2});
  for (MeshAxes axes = 0; axes < 16; ++axes) {
    std::set<int> colors;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      std::vector<int> expected;
      const MeshCoordinates own = mesh.CoordinatesOf(rank);
      for (int other = 0; other < mesh.world(); ++other) {
        const MeshCoordinates c = mesh.CoordinatesOf(other);
        if (((axes & kTensorAxis) != 0 || c.tensor == own.tensor) &&
            ((axes & kContextAxis) != 0 || c.context == own.context) &&
            ((axes & kDataAxis) != 0 || c.data == own.data) &&
            ((axes & kPipelineAxis) != 0 || c.pipeline == own.pipeline)) {
          expected.push_back(other);
        }
      }
      EXPECT_EQ(mesh.GroupOf(rank, axes), expected);
      EXPECT_EQ(expected[mesh.IndexInGroup(rank, axes)], rank);
      for (const int other : expected) {
        EXPECT_EQ(mesh.ColorOf(other, axes), mesh.ColorOf(rank, axes));
      }
      if (mesh.IndexInGroup(rank, axes) == 0) {
        EXPECT_TRUE(colors.insert(mesh.ColorOf(rank, axes)).second);
      }
    }
  }
}

TEST(MeshTest, WrongProductsPrintEveryFactor) {
  ExpectRefused(Mesh::Create(8, {.pipeline = 2, .data = 2, .tensor = 3}).status(),
                "world 8 is not pipeline 2 x data 2 x context 1 x tensor 3 = 12");
  ExpectRefused(Mesh::Create(8, {.pipeline = 0, .data = 8}).status(),
                "every factor of pipeline 0 x data 8 x context 1 x tensor 1 = 0 must be 1 or more");
  ExpectRefused(Mesh::Create(4, {.data = -2, .tensor = -2}).status(),
                "every factor of pipeline 1 x data -2 x context 1 x tensor -2 = 4 must be 1 or "
                "more");
}

LayoutDemands Toy() {
  return {.heads = 16,
          .kv_heads = 8,
          .ffn = 192,
          .layers = 298,
          .sequence_length = 128,
          .sequence_parallel = true,
          .global_batch = 8,
          .micro_batch = 1};
}

TEST(LayoutTest, AcceptsWhatDivides) {
  for (const int tensor : {1, 2, 4, 8, 16}) {  // with 16, two ranks share a K/V head
    EXPECT_TRUE(CheckLayout({.data = 2, .tensor = tensor}, Toy()).ok()) << tensor;
  }
  EXPECT_TRUE(CheckLayout({.pipeline = 7, .data = 8}, Toy()).ok());
  LayoutDemands demands = Toy();
  demands.chunks = 2;
  EXPECT_TRUE(CheckLayout({.pipeline = 4}, demands).ok());
  demands.experts = 8;
  demands.expert = 4;
  EXPECT_TRUE(CheckLayout({.data = 2, .tensor = 2}, demands).ok());
}

TEST(LayoutTest, RefusesWhatDoesNotDivide) {
  const std::string mesh3 = " (mesh: pipeline 1 x data 1 x context 1 x tensor 3 = 3)";
  ExpectRefused(CheckLayout({.tensor = 3}, Toy()),
                "the number of query heads 16 is not a multiple of tensor = 3" + mesh3);
  LayoutDemands demands = Toy();
  demands.heads = 12;
  ExpectRefused(CheckLayout({.tensor = 3}, demands),
                "tensor 3 neither divides the number of key/value heads 8 nor is a multiple of "
                "it" +
                    mesh3);
  demands.kv_heads = 12;
  demands.ffn = 100;
  ExpectRefused(CheckLayout({.tensor = 3}, demands),
                "the FFN width 100 is not a multiple of tensor = 3" + mesh3);
  demands.ffn = 192;
  ExpectRefused(CheckLayout({.tensor = 3}, demands),
                "the sequence length 128 is not a multiple of context 1 x tensor 3 = 3" + mesh3);
  demands.sequence_parallel = false;
  EXPECT_TRUE(CheckLayout({.tensor = 3}, demands).ok());
  ExpectRefused(CheckLayout({.data = 3}, Toy()),
                "the global batch 8 is not a multiple of data 3 x micro-batch 1 = 3 (mesh: "
                "pipeline 1 x data 3 x context 1 x tensor 1 = 3)");
  demands = Toy();
  demands.lanes = 3;
  ExpectRefused(CheckLayout({.data = 2}, demands),
                "the number of micro-batches per replica, global batch 8 / (data 2 x micro-batch "
                "1) = 4 is not a multiple of lanes = 3 (mesh: pipeline 1 x data 2 x context 1 x "
                "tensor 1 = 2)");
  demands = Toy();
  demands.chunks = 2;
  ExpectRefused(CheckLayout({.pipeline = 3}, demands),
                "the number of micro-batches per replica, global batch 8 / (data 1 x micro-batch "
                "1) = 8 is not a multiple of pipeline, as interleaved stages need, = 3 (mesh: "
                "pipeline 3 x data 1 x context 1 x tensor 1 = 3)");
  demands.layers = 7;
  ExpectRefused(CheckLayout({.pipeline = 4}, demands),
                "the model has 7 layers, but pipeline 4 x chunks 2 needs at least 8 (mesh: "
                "pipeline 4 x data 1 x context 1 x tensor 1 = 4)");
  demands = Toy();
  demands.expert = 2;
  ExpectRefused(CheckLayout({.data = 2}, demands),
                "expert is 2, but the model has no experts: it must be 1");
  demands.experts = 8;
  demands.expert = 4;
  ExpectRefused(CheckLayout({.data = 2}, demands),
                "data 2 x tensor 1 = 2 is not a multiple of expert = 4 (mesh: pipeline 1 x data 2 "
                "x context 1 x tensor 1 = 2)");
  demands.expert = 2;
  demands.shared_ffn = 9;
  ExpectRefused(CheckLayout({.tensor = 2}, demands),
                "the width of the shared experts 9 is not a multiple of tensor = 2 (mesh: pipeline "
                "1 x data 1 x context 1 x tensor 2 = 2)");
  demands.shared_ffn = 8;
  demands.experts_over_tensor = true;
  demands.expert_ffn = 4;
  EXPECT_TRUE(CheckLayout({.data = 2, .tensor = 4}, demands).ok());
  ExpectRefused(CheckLayout({.tensor = 2}, demands),
                "with experts over the tensor ranks, data 1 is not a multiple of expert = 2 (mesh: "
                "pipeline 1 x data 1 x context 1 x tensor 2 = 2)");
  demands.expert_ffn = 6;
  ExpectRefused(CheckLayout({.data = 2, .tensor = 4}, demands),
                "the width of an expert 6 is not a multiple of tensor = 4 (mesh: pipeline 1 x data "
                "2 x context 1 x tensor 4 = 8)");
}

// The ranks of each group, by their color.
template <class Color>
std::vector<std::vector<int>> GroupsBy(const Mesh& mesh, Color color) {
  std::map<int, std::vector<int>> groups;
  for (int rank = 0; rank < mesh.world(); ++rank) groups[color(rank)].push_back(rank);
  std::vector<std::vector<int>> list;
  for (const auto& [key, ranks] : groups) list.push_back(ranks);
  return list;
}

TEST(MeshTest, ExpertsFillTensorRanksFirst) {
  using Groups = std::vector<std::vector<int>>;
  const Mesh mesh = *Mesh::Create(16, {.pipeline = 2, .data = 4, .tensor = 2});
  const auto groups = [&](const ExpertSizes& experts) {
    return GroupsBy(mesh, [&](int rank) { return mesh.ExpertPlaceOf(rank, experts).group_color; });
  };
  const auto copies = [&](const ExpertSizes& experts) {
    return GroupsBy(mesh,
                    [&](int rank) { return mesh.ExpertPlaceOf(rank, experts).replica_color; });
  };
  // Whole experts on four ranks: two tensor ranks of two data ranks.
  const ExpertSizes whole = {.expert = 4};
  EXPECT_EQ(groups(whole), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(copies(whole),
            (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}}));
  EXPECT_EQ(mesh.ExpertPlaceOf(6, whole).rank, 2);
  EXPECT_EQ(mesh.ExpertPlaceOf(6, whole).replica, 1);
  EXPECT_EQ(mesh.ExpertPlaceOf(6, whole).replicas, 2);
  // Split over the tensor ranks: groups of data ranks.
  const ExpertSizes split = {.expert = 2, .over_tensor = true};
  EXPECT_EQ(groups(split),
            (Groups{{0, 2}, {4, 6}, {1, 3}, {5, 7}, {8, 10}, {12, 14}, {9, 11}, {13, 15}}));
  EXPECT_EQ(copies(split),
            (Groups{{0, 4}, {2, 6}, {1, 5}, {3, 7}, {8, 12}, {10, 14}, {9, 13}, {11, 15}}));
}

}  // namespace
}  // namespace fathom
