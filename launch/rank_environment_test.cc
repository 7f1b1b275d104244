#include "launch/rank_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "gtest/gtest.h"

namespace fathom {
namespace {

using Hosts = std::vector<std::string>;

TEST(RankEnvironmentTest, ReadsThisProcess) {
  ASSERT_EQ(setenv("UCX_TLS", "rc,sm", 1), 0);
  const RankInfo info = ReadRankInfo(3);
  std::array<char, 256> name{};
  ASSERT_EQ(gethostname(name.data(), name.size() - 1), 0);
  EXPECT_EQ(info.host, name.data());
  EXPECT_EQ(info.threads, 3);
  EXPECT_EQ(std::count(info.settings.begin(), info.settings.end(), "UCX_TLS=rc,sm"), 1);
  unsetenv("UCX_TLS");
}

TEST(RankEnvironmentTest, CoresAreThoseThatItIsBoundTo) {
  const std::vector<int> before = ReadRankInfo(1).cores;
  ASSERT_FALSE(before.empty());
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(before.size(), CPU_COUNT(&all));
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(before.back(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ReadRankInfo(1).cores, std::vector<int>{before.back()});
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(RankEnvironmentTest, SettingsOfNetworksOnly) {
  const std::array<const char*, 13> environment = {"UCX_TLS=rc",
                                                   "HOME=/home/me",
                                                   "OMPI_MCA_ess_base_vpid=3",
                                                   "OMPI_MCA_orte_hnp_uri=1.0;tcp://10.0.0.1:5",
                                                   "OMPI_MCA_btl_tcp_if_include=eth1",
                                                   "OMPI_MCA_btl=self,vader,tcp",
                                                   "OMPI_COMM_WORLD_RANK=3",
                                                   "NCCL_SOCKET_IFNAME=ib0",
                                                   "MY_NCCL_X=1",
                                                   "OMPI_MCA_pml=ucx",
                                                   "OMPI_MCA_pmix=^s1,s2",
                                                   "FI_PROVIDER=verbs",
                                                   nullptr};
  EXPECT_EQ(NetworkSettings(environment.data()),
            (Hosts{"FI_PROVIDER=verbs", "NCCL_SOCKET_IFNAME=ib0", "OMPI_MCA_btl=self,vader,tcp",
                   "OMPI_MCA_btl_tcp_if_include=eth1", "OMPI_MCA_pml=ucx", "UCX_TLS=rc"}));
}

TEST(RankEnvironmentTest, HostsThatTheScriptsPassOn) {
  EXPECT_EQ(HostsOfRanks("a:2,b:1", 3, 0, "a.local"), (Hosts{"a.local", "a", "b"}));
  EXPECT_EQ(HostsOfRanks("fe80::1:2", 2, 1, "x"), (Hosts{"fe80::1", "x"}));
  for (const char* unusable :
       {"", "a:2", "a:4", "a", "a:x,b:1", "a:0,b:3", "a:-1,b:4", ":", "a:"}) {
    EXPECT_EQ(HostsOfRanks(unusable, 3, 1, "own"), (Hosts{"", "own", ""})) << unusable;
  }
}

}  // namespace
}  // namespace fathom
