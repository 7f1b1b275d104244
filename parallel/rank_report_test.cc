#include "parallel/rank_report.h"

#include "gtest/gtest.h"

namespace fathom {
namespace {

using Lines = std::vector<std::string>;

RankInfo Rank(const std::string& host, const std::string& cores, int threads, Lines settings = {}) {
  return {.host = host,
          .cores = ParseShortList(cores).value(),
          .threads = threads,
          .settings = std::move(settings)};
}

// Ranks 0, 1, ... of one host, each on its own `threads` cores.
std::vector<RankInfo> Bound(const std::string& host, int ranks, int threads) {
  std::vector<RankInfo> infos;
  for (int i = 0; i < ranks; ++i) {
    infos.push_back({.host = host, .cores = {}, .threads = threads});
    for (int t = 0; t < threads; ++t) infos.back().cores.push_back(i * threads + t);
  }
  return infos;
}

std::vector<RankInfo> operator+(std::vector<RankInfo> a, const std::vector<RankInfo>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Lines Warnings(const std::vector<RankInfo>& ranks, int tensor = 1) {
  const int world = static_cast<int>(ranks.size());
  const auto mesh = Mesh::Create(world, {.data = world / tensor, .tensor = tensor});
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return RankWarnings(ranks, *mesh);
}

TEST(RankTableTest, OneLineForEachHostThatAgrees) {
  std::vector<RankInfo> ranks = Bound("node1", 2, 4) + Bound("longname", 2, 1);
  ranks[2].cores = ranks[3].cores = {0, 1, 2, 3, 8};
  ranks.push_back(Rank("n3", "5", 1));
  ranks[0].settings = {"NCCL_DEBUG=INFO", "UCX_TLS=rc"};
  EXPECT_EQ(
      RankTable(ranks),
      (Lines{"5 ranks on 3 hosts", "  node1     ranks 0-1  4 threads each on 4 cores each: 0-3 4-7",
             "  longname  ranks 2-3  1 thread each on the same 5 cores: 0-3,8",
             "  n3        rank 4     1 thread on 1 core: 5",
             "network settings: NCCL_DEBUG=INFO UCX_TLS=rc"}));
}

TEST(RankTableTest, OneLineForEachRankThatDiffers) {
  EXPECT_EQ(RankTable({Rank("a", "0-3", 4), Rank("a", "4-5", 2)}),
            (Lines{"2 ranks on 1 host", "  a  rank 0 (local 0)  4 threads on 4 cores: 0-3",
                   "  a  rank 1 (local 1)  2 threads on 2 cores: 4-5", "network settings: none"}));
}

TEST(RankTableTest, RanksNeedNotFollowTheHosts) {
  EXPECT_EQ(RankTable({Rank("a", "0", 1), Rank("b", "0", 1), Rank("a", "1", 1), Rank("b", "", 1)}),
            (Lines{"4 ranks on 2 hosts", "  a  ranks 0,2         1 thread each on 1 core each: 0 1",
                   "  b  rank 1 (local 0)  1 thread on 1 core: 0",
                   "  b  rank 3 (local 1)  1 thread on unknown cores", "network settings: none"}));
}

TEST(RankWarningsTest, NoneWhenAllFits) {
  EXPECT_EQ(Warnings({Rank("a", "0-1", 2)}), Lines{});
  EXPECT_EQ(Warnings(Bound("a", 8, 4) + Bound("b", 8, 4), 8), Lines{});
  // Unbound, but no more threads than cores.
  EXPECT_EQ(Warnings({Rank("a", "0-7", 4), Rank("a", "0-7", 4)}), Lines{});
  // The same cores on different hosts.
  EXPECT_EQ(Warnings({Rank("a", "0", 1), Rank("b", "0", 1)}), Lines{});
  EXPECT_EQ(Warnings({Rank("a", "", 4), Rank("b", "", 4)}), Lines{});
}

TEST(RankWarningsTest, MoreThreadsThanCores) {
  EXPECT_EQ(Warnings({Rank("a", "0-1", 3)}),
            (Lines{"rank 0 uses 3 threads on 2 cores: device.threads should be 2 or less"}));
  EXPECT_EQ(Warnings({Rank("a", "0", 2), Rank("a", "1", 2), Rank("a", "2-3", 2)}),
            (Lines{"ranks 0-1 use 2 threads each on 1 core each: device.threads should be 1 or "
                   "less"}));
}

TEST(RankWarningsTest, OversubscribedHost) {
  EXPECT_EQ(Warnings({Rank("vm", "0-1", 1), Rank("vm", "0-1", 1), Rank("vm", "0-1", 1)}),
            (Lines{"host vm is oversubscribed: ranks 0-2 have 3 threads together on 2 cores "
                   "(0-1)"}));
  // Ranks 0 and 2 share cores by way of rank 3; rank 1 has its own.
  EXPECT_EQ(Warnings({Rank("a", "0-1", 2), Rank("a", "8-9", 2), Rank("a", "2-3", 2),
                      Rank("a", "1-2", 2)}),
            (Lines{"host a is oversubscribed: ranks 0,2-3 have 6 threads together on 4 cores "
                   "(0-3)"}));
}

TEST(RankWarningsTest, UnequalHosts) {
  EXPECT_EQ(Warnings(Bound("a", 4, 2) + Bound("b", 2, 2)),
            (Lines{"hosts have different numbers of ranks: 4 on a; 2 on b"}));
  EXPECT_EQ(Warnings({Rank("a", "0-3", 2), Rank("b", "0-1", 2), Rank("c", "0-3", 2)}),
            (Lines{"hosts have different numbers of cores: 4 on a, c; 2 on b"}));
  std::vector<RankInfo> many = Bound("slow", 1, 1);
  for (const char* host : {"a", "b", "c", "d", "e", "f"}) many = many + Bound(host, 1, 2);
  EXPECT_EQ(Warnings(many), (Lines{"hosts have different numbers of cores: 2 on a, b, c, d and 2 "
                                   "more; 1 on slow"}));
}

TEST(RankWarningsTest, TensorGroupsThatLeaveTheNode) {
  const std::vector<RankInfo> ranks = Bound("a", 3, 1) + Bound("b", 3, 1);
  EXPECT_EQ(Warnings(ranks, 3), Lines{});
  EXPECT_EQ(Warnings(ranks, 2),
            (Lines{"1 of 3 tensor groups leaves the node (first: ranks 2-3 on a, b): every layer "
                   "waits for the network; the ranks of a host should be a multiple of "
                   "parallel.tensor = 2"}));
  // Ranks dealt out over the hosts one by one.
  std::vector<RankInfo> dealt;
  for (int rank = 0; rank < 4; ++rank) {
    dealt.push_back(Rank(rank % 2 == 0 ? "a" : "b", std::to_string(rank / 2), 1));
  }
  EXPECT_EQ(Warnings(dealt, 2),
            (Lines{"2 of 2 tensor groups leave the node (first: ranks 0-1 on a, b): every layer "
                   "waits for the network; the ranks of a host should be a multiple of "
                   "parallel.tensor = 2"}));
}

TEST(RankWarningsTest, DifferentSettings) {
  const Lines common = {"OMPI_MCA_btl=self,vader", "UCX_TLS=rc"};
  EXPECT_EQ(Warnings({Rank("a", "0", 1, common), Rank("b", "0", 1, common)}), Lines{});
  EXPECT_EQ(Warnings({Rank("a", "0", 1, common), Rank("b", "0", 1, {"UCX_TLS=tcp"}),
                      Rank("c", "0", 1, {"UCX_TLS=sm", "UCX_X=1=2", "OMPI_MCA_btl=self,vader"})}),
            (Lines{"OMPI_MCA_btl is \"self,vader\" on rank 0 (a), but not set on rank 1 (b)",
                   "UCX_TLS is \"rc\" on rank 0 (a), but \"tcp\" on rank 1 (b)",
                   "UCX_X is not set on rank 0 (a), but \"1=2\" on rank 2 (c)"}));
}

}  // namespace
}  // namespace fathom
