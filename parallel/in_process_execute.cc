#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "parallel/counts.h"
#include "parallel/in_process_group.h"
#include "parallel/reduce.h"

namespace fathom {
namespace {

using Requests = std::vector<const CollectiveRequest*>;

char* Bytes(const Tensor& x, int64_t element) {
  return static_cast<char*>(x.raw()) + element * SizeOf(x.dtype());
}

void Copy(const Tensor& from, int64_t from_element, const Tensor& to, int64_t to_element,
          int64_t elements, int64_t chunk_elements) {
  if (Bytes(from, from_element) == Bytes(to, to_element)) return;
  ForEachChunk(elements, chunk_elements, [&](int64_t begin, int64_t count) {
    std::memcpy(Bytes(to, to_element + begin), Bytes(from, from_element + begin),
                count * SizeOf(from.dtype()));
  });
}

// Elements begin to begin + count - 1 of all inputs, added up into `output`.
void ReduceSlice(const Requests& requests, int64_t begin, int64_t count, void* output) {
  std::vector<const void*> sources;
  for (const CollectiveRequest* request : requests) sources.push_back(Bytes(request->input, begin));
  ReduceInOrder(requests[0]->input.dtype(), requests[0]->op, sources, count, output);
}

void AllReduce(const Requests& requests, int64_t chunk_elements) {
  const Tensor& first = requests[0]->output;
  ForEachChunk(first.elements(), chunk_elements, [&](int64_t begin, int64_t count) {
    ReduceSlice(requests, begin, count, Bytes(first, begin));
    for (const CollectiveRequest* request : requests) {
      Copy(first, begin, request->output, begin, count, chunk_elements);
    }
  });
}

void ReduceScatter(const Requests& requests, int64_t chunk_elements) {
  const std::vector<int64_t> offsets = Offsets(requests[0]->counts);
  for (size_t r = 0; r < requests.size(); ++r) {
    const Tensor& output = requests[r]->output;
    ForEachChunk(output.elements(), chunk_elements, [&](int64_t begin, int64_t count) {
      ReduceSlice(requests, offsets[r] + begin, count, Bytes(output, begin));
    });
  }
}

void AllGather(const Requests& requests, int64_t chunk_elements) {
  const std::vector<int64_t> offsets = Offsets(requests[0]->counts);
  for (const CollectiveRequest* to : requests) {
    for (size_t r = 0; r < requests.size(); ++r) {
      Copy(requests[r]->input, 0, to->output, offsets[r], requests[r]->counts[r], chunk_elements);
    }
  }
}

void AllToAll(const Requests& requests, int64_t chunk_elements) {
  for (size_t from = 0; from < requests.size(); ++from) {
    const std::vector<int64_t> send_offsets = Offsets(requests[from]->counts);
    for (size_t to = 0; to < requests.size(); ++to) {
      const std::vector<int64_t> receive_offsets = Offsets(requests[to]->receive_counts);
      Copy(requests[from]->input, send_offsets[to], requests[to]->output, receive_offsets[from],
           requests[from]->counts[to], chunk_elements);
    }
  }
}

std::string Describe(const CollectiveRequest& request) {
  return absl::StrCat(std::string(Name(request.collective)), " of ", request.bytes(), " bytes of ",
                      std::string(Name(request.input.dtype())));
}

absl::Status CheckTogether(const Requests& requests) {
  const CollectiveRequest& first = *requests[0];
  for (size_t r = 1; r < requests.size(); ++r) {
    const CollectiveRequest& other = *requests[r];
    const bool all_to_all = first.collective == Collective::kAllToAll;
    const bool same =
        other.collective == first.collective && other.op == first.op &&
        other.input.dtype() == first.input.dtype() && other.peer == first.peer &&
        (all_to_all || (other.bytes() == first.bytes() && other.counts == first.counts));
    if (!same) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank 0 calls ", Describe(first), ", but rank ", r, " calls ", Describe(other),
          ": operation, operands, counts and root "
          "must be the same on all ranks"));
    }
    for (size_t q = 0; all_to_all && q < r; ++q) {
      const auto mismatch = [&](size_t from, size_t to) {
        return requests[from]->counts[to] != requests[to]->receive_counts[from];
      };
      if (mismatch(q, r) || mismatch(r, q)) {
        return absl::FailedPreconditionError(
            absl::StrCat("all-to-all: ranks ", q, " and ", r,
                         " do not receive from each other as many elements as are sent"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

void CopyTransfer(const Tensor& from, const Tensor& to, int64_t chunk_elements) {
  Copy(from, 0, to, 0, from.elements(), chunk_elements);
}

absl::Status ExecuteTogether(const Requests& requests, int64_t chunk_elements) {
  FATHOM_RETURN_IF_ERROR(CheckTogether(requests));
  switch (requests[0]->collective) {
    case Collective::kAllReduce:
      AllReduce(requests, chunk_elements);
      break;
    case Collective::kReduceScatter:
      ReduceScatter(requests, chunk_elements);
      break;
    case Collective::kAllGather:
      AllGather(requests, chunk_elements);
      break;
    case Collective::kAllToAll:
      AllToAll(requests, chunk_elements);
      break;
    case Collective::kBroadcast: {
      const Tensor& root = requests[requests[0]->peer]->input;
      for (const CollectiveRequest* request : requests) {
        Copy(root, 0, request->output, 0, root.elements(), chunk_elements);
      }
      break;
    }
    case Collective::kSend:
    case Collective::kReceive:
    case Collective::kBarrier:
      break;
  }
  return absl::OkStatus();
}

}  // namespace fathom
