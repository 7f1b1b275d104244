#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/collective.h"

// Operations as rounds of messages between pairs of ranks, for backends that can only send and
// receive. Whoever reduces has all ranks'
// values and adds them in rank order.
namespace fathom {

// `bytes` from or to `peer`. Both sides have the same messages in the same order.
struct Message {
  int peer = 0;
  char* data = nullptr;  // only read from when it is sent
  int64_t bytes = 0;
};

// Messages that travel at the same time, and what this rank does when all of them have arrived.
struct ExchangeRound {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::function<void()> then;  // may be null
};

struct ExchangeLimits {
  // The most elements of a message. No message exceeds 2^31 - 1 bytes whatever this is.
  int64_t chunk_elements = int64_t{1} << 27;
  // About the most memory that a reduction takes for values that have arrived; larger ones go in
  // several rounds.
  int64_t scratch_bytes = int64_t{64} << 20;
  // An all-reduce whose operands over all ranks, or a broadcast whose operand, are at most so large
  // takes one round instead of two that carry less.
  int64_t small_bytes = int64_t{64} << 10;
};

// What rank `rank` of `size` does for `request`. Every rank gets as many rounds, except for sends
// and receives. An all-reduce is a reduce-scatter followed by an all-gather, so each rank sends
// 2*(size-1)/size of its operand; a broadcast is a scatter followed by an all-gather.
//
// Scratch is allocated here and lives as long as the rounds. Operands are only addressed, not
// touched, before `then` runs.
std::vector<ExchangeRound> PlanExchange(const CollectiveRequest& request, int rank, int size,
                                        const ExchangeLimits& limits);

}  // namespace fathom
