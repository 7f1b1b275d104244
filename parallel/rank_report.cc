#include "parallel/rank_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"

namespace fathom {
namespace {

using Ranks = std::vector<RankInfo>;

struct Host {
  std::string name;
  std::vector<int> ranks;  // ascending
};

// In the order of their first ranks.
std::vector<Host> HostsOf(const Ranks& ranks) {
  std::vector<Host> hosts;
  std::map<std::string, size_t> places;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto [place, is_new] = places.emplace(ranks[rank].host, hosts.size());
    if (is_new) hosts.push_back({ranks[rank].host, {}});
    hosts[place->second].ranks.push_back(static_cast<int>(rank));
  }
  return hosts;
}

// "1 core", "2 cores".
std::string Count(int64_t number, const std::string& noun) {
  return absl::StrCat(number, " ", noun, number == 1 ? "" : "s");
}

// "rank 3", "ranks 0-7".
std::string RankNames(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", ShortList(ranks));
}

std::string Padded(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string CoresOfOne(const RankInfo& info) {
  if (info.cores.empty()) return "unknown cores";
  return absl::StrCat(Count(info.cores.size(), "core"), ": ", ShortList(info.cores));
}

bool Agree(const Host& host, const Ranks& ranks) {
  const RankInfo& first = ranks[host.ranks[0]];
  return std::all_of(host.ranks.begin(), host.ranks.end(), [&](int rank) {
    return ranks[rank].threads == first.threads && ranks[rank].cores.size() == first.cores.size();
  });
}

// What the ranks of a host that agree run on.
std::string DescribeTogether(const Host& host, const Ranks& ranks) {
  const RankInfo& first = ranks[host.ranks[0]];
  const std::string threads = Count(first.threads, "thread");
  if (host.ranks.size() == 1) return absl::StrCat(threads, " on ", CoresOfOne(first));
  if (first.cores.empty()) return absl::StrCat(threads, " each on unknown cores");
  const bool shared = std::all_of(host.ranks.begin(), host.ranks.end(),
                                  [&](int rank) { return ranks[rank].cores == first.cores; });
  if (shared) return absl::StrCat(threads, " each on the same ", CoresOfOne(first));
  std::vector<std::string> lists;
  for (const int rank : host.ranks) lists.push_back(ShortList(ranks[rank].cores));
  return absl::StrCat(threads, " each on ", Count(first.cores.size(), "core"),
                      " each: ", absl::StrJoin(lists, " "));
}

// Cores that the ranks may run on, and their threads.
struct Load {
  std::vector<int> ranks;
  std::set<int> cores;
  int64_t threads = 0;
};

// The ranks of a host, those together that share cores, if only by way of others.
std::vector<Load> SharedCores(const Host& host, const Ranks& ranks) {
  std::vector<Load> loads;
  for (const int rank : host.ranks) {
    Load load{.ranks = {rank},
              .cores = {ranks[rank].cores.begin(), ranks[rank].cores.end()},
              .threads = ranks[rank].threads};
    for (size_t i = 0; i < loads.size();) {
      const bool overlaps = std::any_of(ranks[rank].cores.begin(), ranks[rank].cores.end(),
                                        [&](int core) { return loads[i].cores.count(core) > 0; });
      if (!overlaps) {
        ++i;
        continue;
      }
      load.ranks.insert(load.ranks.end(), loads[i].ranks.begin(), loads[i].ranks.end());
      load.cores.insert(loads[i].cores.begin(), loads[i].cores.end());
      load.threads += loads[i].threads;
      loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::sort(load.ranks.begin(), load.ranks.end());
    loads.push_back(std::move(load));
  }
  return loads;
}

// Ranks with more threads than cores, those with the same numbers in one sentence.
void WarnOfThreads(const Ranks& ranks, std::vector<std::string>* warnings) {
  std::map<std::pair<int, int>, std::vector<int>> crowded;  // (threads, cores)
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const int cores = static_cast<int>(ranks[rank].cores.size());
    if (cores > 0 && ranks[rank].threads > cores) {
      crowded[{ranks[rank].threads, cores}].push_back(static_cast<int>(rank));
    }
  }
  for (const auto& [sizes, who] : crowded) {
    const std::string each = who.size() == 1 ? "" : " each";
    warnings->push_back(absl::StrCat(RankNames(who), who.size() == 1 ? " uses " : " use ",
                                     Count(sizes.first, "thread"), each, " on ",
                                     Count(sizes.second, "core"), each,
                                     ": device.threads should be ", sizes.second, " or less"));
  }
}

void WarnOfSharedCores(const std::vector<Host>& hosts, const Ranks& ranks,
                       std::vector<std::string>* warnings) {
  for (const Host& host : hosts) {
    for (const Load& load : SharedCores(host, ranks)) {
      if (load.ranks.size() == 1 || load.threads <= static_cast<int64_t>(load.cores.size())) {
        continue;
      }
      warnings->push_back(absl::StrCat(
          "host ", host.name, " is oversubscribed: ", RankNames(load.ranks), " have ",
          Count(load.threads, "thread"), " together on ", Count(load.cores.size(), "core"), " (",
          ShortList({load.cores.begin(), load.cores.end()}), ")"));
    }
  }
}

// "8 on node1, node2; 4 on node3": the hosts by their value, at most four of each named. Empty when
// all have the same value.
std::string Differences(const std::map<int64_t, std::vector<std::string>>& hosts_by_value) {
  if (hosts_by_value.size() <= 1) return "";
  std::vector<std::string> parts;
  for (auto entry = hosts_by_value.rbegin(); entry != hosts_by_value.rend(); ++entry) {
    const auto& [value, names] = *entry;
    const size_t named = std::min<size_t>(names.size(), 4);
    std::string part = absl::StrCat(
        value, " on ", absl::StrJoin(names.begin(), names.begin() + static_cast<int>(named), ", "));
    if (named < names.size()) absl::StrAppend(&part, " and ", names.size() - named, " more");
    parts.push_back(std::move(part));
  }
  return absl::StrJoin(parts, "; ");
}

void WarnOfUnequalHosts(const std::vector<Host>& hosts, const Ranks& ranks,
                        std::vector<std::string>* warnings) {
  std::map<int64_t, std::vector<std::string>> by_ranks;
  std::map<int64_t, std::vector<std::string>> by_cores;
  for (const Host& host : hosts) {
    std::set<int> cores;
    for (const int rank : host.ranks) {
      cores.insert(ranks[rank].cores.begin(), ranks[rank].cores.end());
    }
    by_ranks[static_cast<int64_t>(host.ranks.size())].push_back(host.name);
    if (cores.empty()) continue;  // unknown
    by_cores[static_cast<int64_t>(cores.size())].push_back(host.name);
  }
  const std::string rank_counts = Differences(by_ranks);
  const std::string core_counts = Differences(by_cores);
  if (!rank_counts.empty()) {
    warnings->push_back(absl::StrCat("hosts have different numbers of ranks: ", rank_counts));
  } else if (!core_counts.empty()) {  // bound ranks bring their cores: said once
    warnings->push_back(absl::StrCat("hosts have different numbers of cores: ", core_counts));
  }
}

void WarnOfSpreadTensorGroups(const Ranks& ranks, const Mesh& mesh,
                              std::vector<std::string>* warnings) {
  int spread = 0;
  std::string first;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (mesh.IndexInGroup(rank, kTensorAxis) != 0) continue;
    const std::vector<int> group = mesh.GroupOf(rank, kTensorAxis);
    std::vector<std::string> hosts;
    for (const int member : group) {
      const std::string& host = ranks[member].host;
      if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
    if (hosts.size() == 1) continue;
    if (++spread == 1) first = absl::StrCat(RankNames(group), " on ", absl::StrJoin(hosts, ", "));
  }
  if (spread == 0) return;
  warnings->push_back(absl::StrCat(
      spread, " of ", mesh.world() / mesh.sizes().tensor, " tensor groups leave",
      spread == 1 ? "s" : "", " the node (first: ", first,
      "): every layer waits for the network; the ranks of a host should be a multiple of ",
      "parallel.tensor = ", mesh.sizes().tensor));
}

std::map<std::string, std::string> SettingsOf(const RankInfo& info) {
  std::map<std::string, std::string> settings;
  for (const std::string& setting : info.settings) {
    const size_t equals = std::min(setting.find('='), setting.size());
    settings[setting.substr(0, equals)] = setting.substr(std::min(equals + 1, setting.size()));
  }
  return settings;
}

// One sentence for each setting, with the first rank that has another value.
void WarnOfSettings(const Ranks& ranks, std::vector<std::string>* warnings) {
  const std::map<std::string, std::string> first = SettingsOf(ranks[0]);
  std::set<std::string> reported;
  const auto value_of = [](const std::map<std::string, std::string>& settings,
                           const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() ? std::string("not set")
                                   : absl::StrCat("\"", found->second, "\"");
  };
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].settings == ranks[0].settings) continue;
    const std::map<std::string, std::string> own = SettingsOf(ranks[rank]);
    std::map<std::string, std::string> names = own;
    names.insert(first.begin(), first.end());
    for (const auto& [name, unused] : names) {
      const std::string here = value_of(own, name);
      const std::string there = value_of(first, name);
      if (here == there || !reported.insert(name).second) continue;
      warnings->push_back(absl::StrCat(name, " is ", there, " on rank 0 (", ranks[0].host,
                                       "), but ", here, " on rank ", rank, " (", ranks[rank].host,
                                       ")"));
    }
  }
}

}  // namespace

std::vector<std::string> RankTable(const std::vector<RankInfo>& ranks) {
  const std::vector<Host> hosts = HostsOf(ranks);
  std::vector<std::vector<std::string>> rows;  // host, ranks, what they run on
  for (const Host& host : hosts) {
    if (Agree(host, ranks)) {
      rows.push_back({host.name, RankNames(host.ranks), DescribeTogether(host, ranks)});
      continue;
    }
    for (size_t local = 0; local < host.ranks.size(); ++local) {
      const RankInfo& info = ranks[host.ranks[local]];
      rows.push_back({host.name, absl::StrCat("rank ", host.ranks[local], " (local ", local, ")"),
                      absl::StrCat(Count(info.threads, "thread"), " on ", CoresOfOne(info))});
    }
  }
  size_t host_width = 0;
  size_t rank_width = 0;
  for (const std::vector<std::string>& row : rows) {
    host_width = std::max(host_width, row[0].size());
    rank_width = std::max(rank_width, row[1].size());
  }
  std::vector<std::string> lines = {
      absl::StrCat(Count(static_cast<int64_t>(ranks.size()), "rank"), " on ",
                   Count(static_cast<int64_t>(hosts.size()), "host"))};
  for (const std::vector<std::string>& row : rows) {
    lines.push_back(absl::StrCat("  ", Padded(row[0], host_width), "  ", Padded(row[1], rank_width),
                                 "  ", row[2]));
  }
  const std::vector<std::string>& settings = ranks[0].settings;
  lines.push_back(
      absl::StrCat("network settings: ", settings.empty() ? "none" : absl::StrJoin(settings, " ")));
  return lines;
}

std::vector<std::string> RankWarnings(const std::vector<RankInfo>& ranks, const Mesh& mesh) {
  FATHOM_CHECK_EQ(ranks.size(), mesh.world());
  const std::vector<Host> hosts = HostsOf(ranks);
  std::vector<std::string> warnings;
  WarnOfThreads(ranks, &warnings);
  WarnOfSharedCores(hosts, ranks, &warnings);
  WarnOfUnequalHosts(hosts, ranks, &warnings);
  WarnOfSpreadTensorGroups(ranks, mesh, &warnings);
  WarnOfSettings(ranks, &warnings);
  return warnings;
}

void ShareCores(std::vector<RankInfo>* ranks) {
  std::map<std::pair<std::string, std::vector<int>>, int> sharing;
  for (const RankInfo& rank : *ranks) ++sharing[{rank.host, rank.cores}];
  for (RankInfo& rank : *ranks) {
    const int cores = static_cast<int>(rank.cores.size());
    rank.threads = std::max(1, cores / sharing[{rank.host, rank.cores}]);
  }
}

}  // namespace fathom
