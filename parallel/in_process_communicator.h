#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace fathom {

struct InProcessOptions : CommunicatorOptions {
  // A transfer ends this long after all its ranks have issued it and the one before it on the same
  // communicator (for sends and receives: on the same pair) has ended:
  //   latency + a random part below random_latency + bytes / bytes_per_second,
  // with the bytes of CollectiveRequest. The caller is never held up, and outputs do not change
  // before that moment.
  std::chrono::nanoseconds latency{0};
  double bytes_per_second = 0;  // 0: unlimited
  std::chrono::nanoseconds random_latency{0};
  uint64_t seed = 1;  // of the random part
};

// A job whose ranks are threads of this process: element r is rank r's member of group "world", to
// be used by rank r's thread. Ranks that call different operations, or the same one with operands
// that do not fit, get FailedPrecondition. Operands are host memory.
std::vector<std::unique_ptr<Communicator>> NewInProcessWorld(int ranks,
                                                             const InProcessOptions& options = {});

}  // namespace fathom
