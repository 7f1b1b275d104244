#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace fathom {

enum class Collective {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
};

// "all-reduce", "reduce-scatter", ...
std::string_view Name(Collective collective);

constexpr bool IsPointToPoint(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kReceive;
}

enum class ReduceOp {
  kSum,
  kMax,  // a NaN on any rank gives NaN
};

// One call on a communicator, as a backend executes it. Communicator's methods fill it in and check
// it, so a backend relies on the following.
struct CollectiveRequest {
  Collective collective = Collective::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  // Contiguous. All-reduce and broadcast work in place: input and output are the same view. Sends
  // have only an input, receives only an output.
  Tensor input;
  Tensor output;
  // Elements, one entry per rank: slices of a reduce-scatter's input and of an all-gather's output
  // by rank; what an all-to-all sends to each rank. Empty for the rest.
  std::vector<int64_t> counts;
  // What an all-to-all receives from each rank.
  std::vector<int64_t> receive_counts;
  // The root of a broadcast; the other side of a send or receive.
  int peer = -1;

  // Bytes of the operand: the input of a reduce-scatter, all-to-all and send, the output of an
  // all-gather and receive, the tensor of an all-reduce and broadcast.
  int64_t bytes() const;
};

}  // namespace fathom
