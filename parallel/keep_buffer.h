#pragma once

#include "core/buffer.h"

namespace fathom {

// Takes over the operand of an operation that has failed: it stays in use until the job is ended
// (see Completion::Wait), so it is never freed.
void KeepForEver(Buffer buffer);

}  // namespace fathom
