#include "parallel/exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "core/check.h"
#include "parallel/counts.h"
#include "parallel/reduce.h"

namespace fathom {
namespace {

class Planner {
 public:
  Planner(const CollectiveRequest& request, int rank, int size, const ExchangeLimits& limits)
      : request_(request),
        rank_(rank),
        size_(size),
        limits_(limits),
        dtype_(request.collective == Collective::kReceive ? request.output.dtype()
                                                          : request.input.dtype()),
        item_(SizeOf(dtype_)),
        in_(static_cast<char*>(request.input.raw())),
        out_(static_cast<char*>(request.output.raw())) {}

  std::vector<ExchangeRound> Plan() {
    switch (request_.collective) {
      case Collective::kAllReduce:
        AllReduce();
        break;
      case Collective::kReduceScatter:
        ReduceScatter(request_.counts, out_);
        break;
      case Collective::kAllGather:
        AllGather(request_.counts, in_);
        break;
      case Collective::kAllToAll:
        AllToAll();
        break;
      case Collective::kBroadcast:
        Broadcast();
        break;
      case Collective::kSend:
        AddMessages(request_.peer, in_, request_.input.elements(), &NewRound().sends);
        break;
      case Collective::kReceive:
        AddMessages(request_.peer, out_, request_.output.elements(), &NewRound().receives);
        break;
      case Collective::kBarrier:
        Barrier();
        break;
    }
    return std::move(rounds_);
  }

 private:
  ExchangeRound& NewRound() { return rounds_.emplace_back(); }

  char* At(char* base, int64_t element) const { return base + element * item_; }

  void AddMessages(int peer, char* data, int64_t elements, std::vector<Message>* messages) {
    const int64_t most = std::numeric_limits<int32_t>::max() / item_;
    ForEachChunk(elements, std::min(limits_.chunk_elements, most),
                 [&](int64_t begin, int64_t count) {
                   messages->push_back({peer, At(data, begin), count * item_});
                 });
  }

  // Calls function(peer) for all other ranks, those behind this one first, so that not all ranks
  // send to the same one at once.
  template <class Function>
  void ForEachPeer(Function function) {
    for (int step = 1; step < size_; ++step) function((rank_ + step) % size_);
  }

  std::shared_ptr<char[]> NewScratch(int64_t elements) {
    return std::make_shared_for_overwrite<char[]>(elements * item_);
  }

  void AllReduce() {
    const int64_t elements = request_.input.elements();
    if (elements * item_ * size_ <= limits_.small_bytes) return AllReduceSmall(elements);
    const std::vector<int64_t> counts = EvenCounts(elements, size_);
    char* own_slice = At(in_, Offsets(counts)[rank_]);
    ReduceScatter(counts, own_slice);
    AllGather(counts, own_slice);
  }

  // Everyone gets everything and adds it up.
  void AllReduceSmall(int64_t elements) {
    const std::shared_ptr<char[]> scratch = NewScratch(elements * size_);
    std::vector<const void*> sources(size_, in_);
    ExchangeRound& round = NewRound();
    ForEachPeer([&](int peer) {
      char* place = At(scratch.get(), peer * elements);
      sources[peer] = place;
      AddMessages(peer, in_, elements, &round.sends);
      AddMessages(peer, place, elements, &round.receives);
    });
    round.then = [this_dtype = dtype_, op = request_.op, sources, elements, out = out_, scratch] {
      ReduceInOrder(this_dtype, op, sources, elements, out);
    };
  }

  // Slice r of everyone's input goes to rank r, which adds up into `output`; as many elements of
  // each slice in a round as fit into the scratch.
  void ReduceScatter(const std::vector<int64_t>& counts, char* output) {
    const std::vector<int64_t> offsets = Offsets(counts);
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    const int64_t piece = std::clamp<int64_t>(limits_.scratch_bytes / (item_ * size_), 1,
                                              std::max<int64_t>(1, longest));
    if (longest == 0) {
      NewRound();
      return;
    }
    const std::shared_ptr<char[]> scratch = NewScratch(std::min(piece, counts[rank_]) * size_);
    ForEachChunk(longest, piece, [&](int64_t begin, int64_t) {
      const auto in_piece = [&](int r) { return std::clamp<int64_t>(counts[r] - begin, 0, piece); };
      const int64_t own = in_piece(rank_);
      std::vector<const void*> sources(size_, At(in_, offsets[rank_] + begin));
      ExchangeRound& round = NewRound();
      ForEachPeer([&](int peer) {
        AddMessages(peer, At(in_, offsets[peer] + begin), in_piece(peer), &round.sends);
        char* place = At(scratch.get(), peer * own);
        sources[peer] = place;
        AddMessages(peer, place, own, &round.receives);
      });
      round.then = [dtype = dtype_, op = request_.op, sources, own, to = At(output, begin),
                    scratch] { ReduceInOrder(dtype, op, sources, own, to); };
    });
  }

  // `own` is this rank's slice; the others arrive in the output.
  void AllGather(const std::vector<int64_t>& counts, char* own) {
    const std::vector<int64_t> offsets = Offsets(counts);
    ExchangeRound& round = NewRound();
    ForEachPeer([&](int peer) {
      AddMessages(peer, own, counts[rank_], &round.sends);
      AddMessages(peer, At(out_, offsets[peer]), counts[peer], &round.receives);
    });
    CopyAfter(&round, own, At(out_, offsets[rank_]), counts[rank_]);
  }

  void AllToAll() {
    const std::vector<int64_t> from = Offsets(request_.counts);
    const std::vector<int64_t> to = Offsets(request_.receive_counts);
    ExchangeRound& round = NewRound();
    ForEachPeer([&](int peer) {
      AddMessages(peer, At(in_, from[peer]), request_.counts[peer], &round.sends);
      AddMessages(peer, At(out_, to[peer]), request_.receive_counts[peer], &round.receives);
    });
    CopyAfter(&round, At(in_, from[rank_]), At(out_, to[rank_]), request_.counts[rank_]);
  }

  void Broadcast() {
    const int root = request_.peer;
    const int64_t elements = request_.input.elements();
    const bool small = elements * item_ <= limits_.small_bytes;
    const std::vector<int64_t> counts =
        small ? std::vector<int64_t>(size_, elements) : EvenCounts(elements, size_);
    const std::vector<int64_t> offsets =
        small ? std::vector<int64_t>(size_ + 1, 0) : Offsets(counts);
    ExchangeRound& round = NewRound();
    if (rank_ == root) {
      ForEachPeer(
          [&](int peer) { AddMessages(peer, At(in_, offsets[peer]), counts[peer], &round.sends); });
    } else {
      AddMessages(root, At(in_, offsets[rank_]), counts[rank_], &round.receives);
    }
    if (!small) AllGather(counts, At(in_, offsets[rank_]));
  }

  void Barrier() {
    ExchangeRound& round = NewRound();
    ForEachPeer([&](int peer) {
      round.sends.push_back({peer, nullptr, 0});
      round.receives.push_back({peer, nullptr, 0});
    });
  }

  void CopyAfter(ExchangeRound* round, const char* from, char* to, int64_t elements) {
    if (from == to || elements == 0) return;
    round->then = [from, to, bytes = elements * item_] { std::memcpy(to, from, bytes); };
  }

  const CollectiveRequest& request_;
  const int rank_;
  const int size_;
  const ExchangeLimits limits_;
  const DType dtype_;
  const int64_t item_;
  char* const in_;
  char* const out_;
  std::vector<ExchangeRound> rounds_;
};

}  // namespace

std::vector<ExchangeRound> PlanExchange(const CollectiveRequest& request, int rank, int size,
                                        const ExchangeLimits& limits) {
  FATHOM_CHECK(size >= 2 && limits.chunk_elements >= 1);
  return Planner(request, rank, size, limits).Plan();
}

}  // namespace fathom
