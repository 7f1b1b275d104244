#pragma once

#include <initializer_list>

#include "core/device.h"

namespace fathom {

// The bytes of operands that each travel once; absent ones count nothing.
inline double OperandBytes(std::initializer_list<Tensor> operands) {
  double bytes = 0;
  for (const Tensor& operand : operands) {
    if (!operand.absent()) bytes += operand.bytes();
  }
  return bytes;
}

}  // namespace fathom
