#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/memory_plan.h"

namespace fathom {

// The most memory that the process has had resident, in bytes; 0 where the system does not say.
int64_t PeakResidentBytes();

// The lines for the user: the first shows what is planned and measured by purpose, and what the
// process holds; a warning follows for each purpose that takes over a tenth more or less than
// planned.
std::vector<std::string> DescribeMemory(const MemoryPlan& planned, const MemoryPlan& measured,
                                        int64_t resident_bytes);

}  // namespace fathom
