#include "launch/rank_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace fathom {
namespace {

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Empty when the kernel does not say.
std::vector<int> AllowedCores() {
  // The kernel refuses sets that are smaller than its own.
  for (int limit = CPU_SETSIZE; limit <= 64 * CPU_SETSIZE; limit *= 2) {
    std::vector<cpu_set_t> set(limit / CPU_SETSIZE);
    const size_t bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, set.data()) != 0) continue;
    std::vector<int> cores;
    for (int core = 0; core < limit; ++core) {
      if (CPU_ISSET_S(core, bytes, set.data())) cores.push_back(core);
    }
    return cores;
  }
  return {};
}

}  // namespace

RankInfo ReadRankInfo(int threads) {
  return {.host = HostName(),
          .cores = AllowedCores(),
          .threads = threads,
          .settings = NetworkSettings(environ)};
}

std::vector<std::string> NetworkSettings(const char* const* environment) {
  constexpr std::array<const char*, 9> kPrefixes = {
      "UCX_",         "NCCL_",         "FI_",          "OMPI_MCA_btl",         "OMPI_MCA_pml",
      "OMPI_MCA_mtl", "OMPI_MCA_coll", "OMPI_MCA_oob", "OMPI_MCA_opal_common_"};
  std::vector<std::string> settings;
  for (; *environment != nullptr; ++environment) {
    const std::string setting = *environment;
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(),
                    [&](const char* prefix) { return absl::StartsWith(setting, prefix); })) {
      settings.push_back(setting);
    }
  }
  std::sort(settings.begin(), settings.end());
  return settings;
}

std::vector<std::string> HostsOfRanks(const std::string& launched, int ranks, int rank,
                                      const std::string& own) {
  std::vector<std::string> hosts;
  const std::vector<std::string> parts = absl::StrSplit(launched, ',', absl::SkipEmpty());
  for (const std::string& part : parts) {
    const size_t colon = std::min(part.rfind(':'), part.size());
    int count = 0;
    const bool good = absl::SimpleAtoi(part.substr(std::min(colon + 1, part.size())), &count) &&
                      count > 0 && count <= ranks;
    if (!good) {
      hosts.clear();
      break;
    }
    hosts.insert(hosts.end(), count, part.substr(0, colon));
  }
  if (static_cast<int>(hosts.size()) != ranks) hosts.assign(ranks, "");
  hosts[rank] = own;
  return hosts;
}

}  // namespace fathom
