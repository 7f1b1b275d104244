#pragma once

#include <utility>

#include "absl/status/status.h"
#include "core/lane.h"
#include "parallel/completion.h"

namespace fathom {

// Lets the other lanes run, then waits for `completion`, so that what is launched on `stream` next
// sees its result. `lanes` may be null: there is one. Called at the same places by all lanes and
// ranks, since lanes take turns here.
inline absl::Status WaitInLane(Completion completion, Stream& stream, Lanes* lanes) {
  if (lanes != nullptr) {
    const int track = stream.track();
    lanes->Yield();
    stream.RecordOn(stream.timeline(), track);
  }
  return completion.Wait(stream);
}

}  // namespace fathom
