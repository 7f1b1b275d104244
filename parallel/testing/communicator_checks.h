#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parallel/communicator.h"

namespace fathom {

// What every communicator must do, by whatever means. All ranks of the group call the same check,
// which reports through GoogleTest's EXPECT_*.
struct CommunicatorCheck {
  std::string name;
  void (*run)(Communicator& communicator);
};

// What arrives where, and its sums: collectives against plain loops.
std::vector<CommunicatorCheck> DataChecks();
// Sends, the order of operations, groups, the log and refusals.
std::vector<CommunicatorCheck> OrderChecks();

inline std::vector<CommunicatorCheck> CommunicatorChecks() {
  std::vector<CommunicatorCheck> checks = DataChecks();
  for (CommunicatorCheck& check : OrderChecks()) checks.push_back(std::move(check));
  return checks;
}

}  // namespace fathom
