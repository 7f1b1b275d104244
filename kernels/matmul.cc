#include "kernels/matmul.h"

#include "kernels/cost.h"

namespace fathom {

Cost MatMul::cost() const {
  return {.matrix_flops = 2.0 * batch() * m() * n() * k(), .bytes = OperandBytes({a, b, c})};
}

void LinearForward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& y,
                   const Tensor& count) {
  Launch(stream, MatMul{.a = x, .b = w, .c = y, .transpose_b = true, .count = count});
}

void LinearBackwardInput(Stream& stream, const Tensor& dy, const Tensor& w, const Tensor& dx,
                         const Tensor& count) {
  Launch(stream, MatMul{.a = dy, .b = w, .c = dx, .count = count});
}

void LinearBackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& dw,
                          const Tensor& count) {
  Launch(stream, MatMul{.a = dy, .b = x, .c = dw, .transpose_a = true, .beta = 1, .count = count});
}

}  // namespace fathom
