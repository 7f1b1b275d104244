#include "runtime/peak_rate.h"

#include <algorithm>
#include <chrono>

#include "core/buffer.h"
#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"

namespace fathom {

absl::StatusOr<double> MeasureMatMulRate(Device& device, DType dtype) {
  using Clock = std::chrono::steady_clock;
  constexpr double kSeconds = 0.25;
  const int64_t side = dtype == DType::kFloat64 ? 384 : 1024;
  const int64_t bytes = side * side * SizeOf(dtype);
  FATHOM_ASSIGN_OR_RETURN(const Buffer buffer, Buffer::Allocate(device, 3 * bytes));
  const Shape shape{side, side};
  const std::unique_ptr<Stream> stream = device.NewStream();
  const MatMul product{.a = buffer.View(0, dtype, shape),
                       .b = buffer.View(bytes, dtype, shape),
                       .c = buffer.View(2 * bytes, dtype, shape),
                       .transpose_b = true};
  Launch(*stream, Fill{.value = 0.5, .y = product.a});
  Launch(*stream, Fill{.value = 0.25, .y = product.b});
  Launch(*stream, product);  // warm
  FATHOM_RETURN_IF_ERROR(stream->Synchronize());

  // The best of single products: other processes only make it slower.
  double best = 0, total = 0;
  while (total < kSeconds) {
    const auto start = Clock::now();
    Launch(*stream, product);
    FATHOM_RETURN_IF_ERROR(stream->Synchronize());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, product.cost().matrix_flops / seconds);
    total += seconds;
  }
  return best;
}

}  // namespace fathom
