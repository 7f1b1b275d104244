#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace fathom {

// Where one rank runs, and on what.
struct RankInfo {
  std::string host;
  // Logical processors that it may run on, as the kernel numbers them, ascending; empty: unknown.
  std::vector<int> cores;
  int threads = 1;  // that it computes with
  // Settings of the network libraries, "NAME=value", sorted.
  std::vector<std::string> settings;

  bool operator==(const RankInfo&) const = default;
};

// Ascending numbers in short form: "0-3,8". Empty: "".
std::string ShortList(const std::vector<int>& numbers);
// The numbers of such a list. InvalidArgument for anything else.
absl::StatusOr<std::vector<int>> ParseShortList(const std::string& text);

// Every rank's info, in rank order. Called by all ranks with their own; blocks. Errors:
// Completion::Wait's.
absl::StatusOr<std::vector<RankInfo>> GatherRankInfo(Communicator& world, Stream& stream,
                                                     const RankInfo& own);

}  // namespace fathom
