#include "runtime/memory_report.h"

#include <sys/resource.h>

#include <cmath>

#include "absl/strings/str_format.h"

namespace fathom {
namespace {

constexpr double kToleratedShare = 0.1;

struct Purpose {
  const char* name;
  int64_t planned;
  int64_t measured;
};

std::string Megabytes(int64_t bytes) { return absl::StrFormat("%.2f MB", bytes / 1e6); }

std::string Describe(const Purpose& purpose) {
  if (purpose.planned == purpose.measured) {
    return absl::StrFormat("%s %s", purpose.name, Megabytes(purpose.measured));
  }
  return absl::StrFormat("%s %s (planned %s)", purpose.name, Megabytes(purpose.measured),
                         Megabytes(purpose.planned));
}

}  // namespace

int64_t PeakResidentBytes() {
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

std::vector<std::string> DescribeMemory(const MemoryPlan& planned, const MemoryPlan& measured,
                                        int64_t resident_bytes) {
  const Purpose purposes[] = {{"weights", planned.weights, measured.weights},
                              {"gradients", planned.gradients, measured.gradients},
                              {"optimizer", planned.optimizer, measured.optimizer},
                              {"activations", planned.activations, measured.activations}};
  std::string line = absl::StrFormat(
      "memory: %s, planned %s%s: ", Megabytes(measured.total()), Megabytes(planned.total()),
      measured.total() == planned.total() ? " (the same bytes)" : "");
  for (const Purpose& purpose : purposes) {
    absl::StrAppend(&line, &purpose == purposes ? "" : ", ", Describe(purpose));
  }
  if (resident_bytes > 0) {
    absl::StrAppend(&line, "; the process has had ", Megabytes(resident_bytes), " resident");
  }
  std::vector<std::string> lines = {line};
  for (const Purpose& purpose : purposes) {
    const double excess = static_cast<double>(purpose.measured - purpose.planned);
    if (std::abs(excess) <= kToleratedShare * static_cast<double>(purpose.planned)) continue;
    lines.push_back(
        absl::StrFormat("warning: %s take %d bytes where the plan of \"fathom inspect\" says %d",
                        purpose.name, purpose.measured, purpose.planned));
  }
  return lines;
}

}  // namespace fathom
