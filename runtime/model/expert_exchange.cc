#include "runtime/model/expert_exchange.h"

#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/expert_rows.h"
#include "parallel/counts.h"

namespace fathom {
namespace {

int64_t Total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::vector<int32_t> ToHost(Pass& pass, ExpertGroup& group, const Tensor& counts) {
  std::vector<int32_t> host(counts.elements());
  pass.stream.CopyToHost(counts, host.data());
  group.Update(pass.stream.Synchronize());
  return host;
}

// [sources, experts of this rank], row-major; `mine` are this rank's counts of all experts.
std::vector<int32_t> CountsFromRanks(Pass& pass, ExpertGroup& group, const Tensor& mine,
                                     const Tensor& from_ranks) {
  const std::vector<int64_t> each(group.size(), mine.elements() / group.size());
  group.Finish(
      group.Start(mine, each, from_ranks.Reshape({from_ranks.elements()}), each, pass.stream),
      pass.stream);
  return ToHost(pass, group, from_ranks);
}

std::vector<int32_t> Even(int64_t total, int64_t parts) {
  const std::vector<int64_t> counts = EvenCounts(total, static_cast<int>(parts));
  return {counts.begin(), counts.end()};
}

}  // namespace

ExpertExchange PlanExchange(Pass& pass, ExpertGroup& group, const Tensor& counts,
                            int64_t expected) {
  const int64_t experts = counts.elements();
  const int64_t ranks = group.size();
  const int64_t local = experts / ranks;
  const bool dry = pass.stream.device().kind() == DeviceKind::kDry;
  ExpertExchange exchange;
  std::vector<int32_t> mine = ToHost(pass, group, counts);
  if (dry) mine = Even(expected, experts);
  exchange.sent = std::accumulate(mine.begin(), mine.end(), int64_t{0});
  if (ranks == 1) {
    exchange.received = exchange.sent;
    exchange.expert_rows.assign(mine.begin(), mine.end());
    return exchange;
  }

  const Tensor from_ranks = pass.arena.New(DType::kInt32, {ranks, local});
  std::vector<int32_t> received = CountsFromRanks(pass, group, counts, from_ranks);
  // After an error nothing was received.
  if (!group.status().ok()) received.assign(received.size(), 0);
  if (dry) {
    const std::vector<int32_t> even = Even(expected, ranks * local);
    received.assign(even.begin(), even.end());
  }
  exchange.expert_rows.assign(local, 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto begin = mine.begin() + rank * local;
    exchange.send_rows.push_back(std::accumulate(begin, begin + local, int64_t{0}));
    const auto from = received.begin() + rank * local;
    exchange.receive_rows.push_back(std::accumulate(from, from + local, int64_t{0}));
    for (int64_t e = 0; e < local; ++e) exchange.expert_rows[e] += from[e];
  }
  exchange.received = Total(exchange.receive_rows);
  exchange.to_expert_major = pass.arena.New(DType::kInt32, {exchange.received});
  exchange.to_source_major = pass.arena.New(DType::kInt32, {exchange.received});
  Launch(pass.stream, ExpertMajorOrder{.counts = from_ranks,
                                       .to_expert_major = exchange.to_expert_major,
                                       .to_source_major = exchange.to_source_major});
  return exchange;
}

ExpertTransfer::ExpertTransfer(Pass& pass, ExpertGroup& group, const ExpertExchange& exchange,
                               bool home, const Tensor& x, const Tensor& y)
    : pass_(pass), group_(group), exchange_(exchange), home_(home), y_(y) {
  if (group.size() == 1) {
    FATHOM_CHECK(x.raw() == y.raw());
    return;
  }
  if (home) {
    const Tensor leaving = pass.arena.New(x.dtype(), x.shape());
    Launch(pass.stream, GatherRows{.x = x, .index = exchange.to_source_major, .y = leaving});
    completion_ = group.Start(leaving, exchange.receive_rows, y, exchange.send_rows, pass.stream);
  } else {
    arrived_ = pass.arena.New(y.dtype(), y.shape());
    completion_ = group.Start(x, exchange.send_rows, arrived_, exchange.receive_rows, pass.stream);
  }
}

void ExpertTransfer::Finish() {
  if (group_.size() == 1) return;
  group_.Finish(std::move(completion_), pass_.stream);
  if (home_) return;
  Launch(pass_.stream, GatherRows{.x = arrived_, .index = exchange_.to_expert_major, .y = y_});
}

}  // namespace fathom
