#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/language_model.h"
#include "runtime/memory_plan.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {

// What a run holds in device memory now, by the purposes of MemoryPlan (its micro_batch is unused).
// `activations` is the arena's peak so far: after a first step it is the run's.
MemoryPlan MeasureMemory(LanguageModel& model, const Optimizer& optimizer);

// The most memory that the process has had resident, in bytes; 0 where the system does not say.
int64_t PeakResidentBytes();

// The lines for the user: the first shows what is planned and measured by purpose, and what the
// process holds; a warning follows for each purpose that takes over a tenth more or less than
// planned.
std::vector<std::string> DescribeMemory(const MemoryPlan& planned, const MemoryPlan& measured,
                                        int64_t resident_bytes);

}  // namespace fathom
