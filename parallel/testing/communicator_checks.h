#pragma once

#include <string>
#include <vector>

#include "parallel/communicator.h"

namespace fathom {

// What every communicator must do, by whatever means. All ranks of the group call the same check,
// which reports through GoogleTest's EXPECT_*.
struct CommunicatorCheck {
  std::string name;
  void (*run)(Communicator& communicator);
};

const std::vector<CommunicatorCheck>& CommunicatorChecks();

}  // namespace fathom
