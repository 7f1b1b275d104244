#include "parallel/collective.h"

namespace fathom {

std::string_view Name(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kAllToAll:
      return "all-to-all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kSend:
      return "send";
    case Collective::kReceive:
      return "receive";
    case Collective::kBarrier:
      return "barrier";
  }
  return "";
}

int64_t CollectiveRequest::bytes() const {
  switch (collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kAllGather:
    case Collective::kReceive:
      return output.bytes();
    default:
      return input.bytes();
  }
}

}  // namespace fathom
