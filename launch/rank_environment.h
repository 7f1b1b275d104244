#pragma once

#include <string>
#include <vector>

#include "parallel/rank_info.h"

namespace fathom {

// This process: its host, the processors that the kernel lets it run on, and what its environment
// says about networks. `threads` is what it computes with.
RankInfo ReadRankInfo(int threads);

// Of an environment ("NAME=value" strings, null at the end), sorted, what decides how messages
// travel: UCX_*, NCCL_*, FI_*, and OMPI_MCA_* of the frameworks that move data. Those that mpirun
// sets for its own use are left out.
std::vector<std::string> NetworkSettings(const char* const* environment);

// The host of each of `ranks` ranks, known before any message has travelled, for
// ExchangeAlongRing. `launched` is what launch/mpirun.sh and launch/slurm.sh pass on in
// FATHOM_HOSTS, the ranks of each host in rank order: "node1:8,node2:8". Where it is malformed or
// has another number of ranks, hosts are empty. `rank`'s own host is `own` in any case.
std::vector<std::string> HostsOfRanks(const std::string& launched, int ranks, int rank,
                                      const std::string& own);

}  // namespace fathom
