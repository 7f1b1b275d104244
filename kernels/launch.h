#pragma once

#include "core/cpu_device.h"
#include "core/timeline.h"

// How operations are declared and run.
//
// An operation is a struct: one field per operand, shape and dtype in a comment, `cost()` from
// sizes that the host knows. `Launch(stream, Operation{.x = ..., .y = ...})` runs it on the
// stream's device. A device implements an operation as one overload: RunOnCpu(const Operation&,
// CpuStream&).
//
// Conventions, said once for all operations:
// - "T" is float32, float64 or bfloat16; "stat" is StatisticsDType(T). Arithmetic is in stat:
// values
//   in bfloat16 are widened when they are read, and results rounded once, when they are written.
// - Gradients of parameters are stat, and so are the parameters that are vectors or scalars (norms,
//   routers, depth scales). Matrices, embedding and head are T.
// - Outputs overwrite, unless the comment says "+=". By convention gradients of parameters
//   accumulate and gradients of activations overwrite.
// - Operands do not overlap unless the comment allows it.
// - Operations allocate nothing and never return a value to the host.
// - `count`: [1] int32 in device memory, the number of rows in use where only the device knows it
//   (causal routing); rows from there on are neither read nor written. Absent: all rows.
// - `index`: int32 rows of a larger tensor, ascending and distinct; absent: row i is row i.
// - The bits of a row of an output do not depend on how many rows there are, nor on other rows.
// - The same operands and the same number of threads give the same bits.

namespace fathom {

// Runs an operation that is in the ledger already.
template <class Operation>
void RunOnDevice(Stream& stream, const Operation& operation) {
  switch (stream.device().kind()) {
    case DeviceKind::kCpu:
      RunOnCpu(operation, static_cast<CpuStream&>(stream));
      break;
    case DeviceKind::kDry:
      break;
  }
}

// When the stream has a timeline, the span is the host's time for the call, which is the
// operation's own time where the device runs inline.
template <class Operation>
void Launch(Stream& stream, const Operation& operation) {
  const Cost cost = operation.cost();
  stream.ledger().Add(Operation::kName, cost);
  if (Timeline* timeline = stream.timeline()) {
    const Timeline::Clock::time_point start = Timeline::Clock::now();
    RunOnDevice(stream, operation);
    timeline->AddSpan(stream.track(), Operation::kName, start, Timeline::Clock::now(),
                      static_cast<int64_t>(cost.bytes));
  } else {
    RunOnDevice(stream, operation);
  }
}

}  // namespace fathom
