#pragma once

#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/rank_info.h"

// What the log of a job says about its ranks. Pure functions: ranks[r] is rank r.
namespace fathom {

// How many ranks there are, one line for each host whose ranks agree in threads and number of
// cores (else one for each rank), and the network settings of rank 0:
//   16 ranks on 2 hosts
//     node1  ranks 0-7   8 threads each on 8 cores each: 0-7 8-15 16-23 ...
//     node2  ranks 8-15  8 threads each on the same 64 cores: 0-63
//   network settings: UCX_TLS=rc
// Hosts come in the order of their first ranks.
std::vector<std::string> RankTable(const std::vector<RankInfo>& ranks);

// One sentence for everything that does not fit together:
// - ranks with more threads than cores;
// - ranks of one host that share cores and have more threads together than those;
// - hosts with different numbers of ranks, or of cores;
// - ranks of one tensor group on different hosts;
// - network settings that differ from rank 0's.
std::vector<std::string> RankWarnings(const std::vector<RankInfo>& ranks, const Mesh& mesh);

// Sets the threads of each rank: the cores that it may run on, shared out evenly with the ranks of
// its host that may run on exactly the same ones; at least 1.
void ShareCores(std::vector<RankInfo>* ranks);

}  // namespace fathom
