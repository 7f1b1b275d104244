#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/arena.h"
#include "core/cpu_device.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"

// Speeds of the CPU's operations, beside those of matrix products of the same number of FLOPs in
// the same run: kernels_benchmark [THREADS].
namespace fathom {
namespace {

class Benchmark {
 public:
  explicit Benchmark(int threads)
      : device_(threads), stream_(device_.NewStream()), arena_(device_) {}

  Tensor New(Shape shape, double value = 0.01) {
    Tensor x = arena_.New(DType::kFloat32, shape);
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<float>()[i] = static_cast<float>(value * ((i * 7919) % 1009 - 504) / 504);
    }
    return x;
  }
  Tensor NewOf(DType dtype, Shape shape) {
    const Tensor x = arena_.New(dtype, shape);
    const ArenaScope scope(arena_);
    Launch(*stream_, Copy{.x = New(shape), .y = x});
    return x;
  }
  Tensor Integers(std::initializer_list<int32_t> values) {
    Tensor x = arena_.New(DType::kInt32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), x.data<int32_t>());
    return x;
  }

  // Seconds of the fastest of several runs.
  template <class Operation>
  double Seconds(const Operation& operation) {
    double best = 1e30;
    double spent = 0;
    for (int i = 0; i < 200 && (i < 3 || spent < 0.6); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      Launch(*stream_, operation);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      best = std::min(best, seconds.count());
      spent += seconds.count();
    }
    return best;
  }

  void Products(DType dtype) {
    for (const auto& [m, n, k] : {std::array<int64_t, 3>{128, 64, 64},
                                  {512, 3072, 512},
                                  {4096, 512, 512},
                                  {2048, 2048, 2048},
                                  {8192, 3072, 512}}) {
      const ArenaScope scope(arena_);
      const Tensor x = NewOf(dtype, {m, k}), w = NewOf(dtype, {n, k}), y = NewOf(dtype, {m, n});
      const Tensor dw = New({n, k});
      const double flops = 2.0 * m * n * k;
      const double forward = Seconds(MatMul{.a = x, .b = w, .c = y, .transpose_b = true});
      const double input = Seconds(MatMul{.a = y, .b = w, .c = x});
      const double weight =
          Seconds(MatMul{.a = y, .b = x, .c = dw, .transpose_a = true, .beta = 1});
      std::printf("%-8s %5ld x %5ld x %5ld   forward %7.1f  input %7.1f  weight %7.1f GFLOP/s\n",
                  std::string(Name(dtype)).c_str(), m, n, k, flops / forward / 1e9,
                  flops / input / 1e9, flops / weight / 1e9);
    }
  }

  void AttentionOf(int64_t length, int64_t heads, int64_t kv_heads, int64_t h) {
    const ArenaScope scope(arena_);
    const Tensor q = New({length, heads * h}, 1), k = New({length, kv_heads * h}, 1);
    const Tensor v = New({length, kv_heads * h}, 1), o = New({length, heads * h});
    const Tensor lse = New({length, heads}), d_o = New({length, heads * h}, 1);
    const Tensor dq = New({length, heads * h}), dk = New({length, kv_heads * h});
    const Tensor dv = New({length, kv_heads * h});
    const Tensor segments = Integers({0, static_cast<int32_t>(length)});
    const double pairs = 0.5 * length * (length + 1);
    const Attention forward{.q = q,
                            .k = k,
                            .v = v,
                            .segments = segments,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .scale = 0.125,
                            .pairs = pairs,
                            .o = o,
                            .lse = lse};
    const AttentionBackward backward{.q = q,
                                     .k = k,
                                     .v = v,
                                     .segments = segments,
                                     .heads = heads,
                                     .kv_heads = kv_heads,
                                     .scale = 0.125,
                                     .pairs = pairs,
                                     .o = o,
                                     .lse = lse,
                                     .d_o = d_o,
                                     .dq = dq,
                                     .dk = dk,
                                     .dv = dv};
    const double forward_seconds = Seconds(forward);
    const double backward_seconds = Seconds(backward);
    const double flops = forward.cost().matrix_flops;
    const int64_t rows = std::max<int64_t>(64, flops / (2.0 * 1024 * 1024));
    const Tensor a = New({rows, 1024}), b = New({1024, 1024}), c = New({rows, 1024});
    const double product = Seconds(MatMul{.a = a, .b = b, .c = c, .transpose_b = true});
    std::printf(
        "attention L %ld H %ld G %ld h %ld   forward %.1f  backward %.1f (5 products: %.1f)  "
        "matmul of the same FLOPs %.1f GFLOP/s\n",
        length, heads, kv_heads, h, flops / forward_seconds / 1e9,
        2 * flops / backward_seconds / 1e9, 2.5 * flops / backward_seconds / 1e9,
        2.0 * rows * 1024 * 1024 / product / 1e9);
  }

  void Rows() {
    const int64_t n = 8192, d = 512, f = 1536;
    const ArenaScope scope(arena_);
    const Tensor x = New({n, d}), y = New({n, d}), dx = New({n, d}), w = New({d}), rstd = New({n});
    const Tensor dw = New({d}), s = New({n}), gate_up = New({n, 2 * f}), dgu = New({n, 2 * f});
    const Tensor act = New({n, f}), dact = New({n, f});
    const Tensor index = arena_.New(DType::kInt32, {n / 16});
    const auto print = [&](const auto& operation, const char* what) {
      const double seconds = Seconds(operation);
      std::printf("%-20s %8.1f us  %6.2f GB/s\n", what, seconds * 1e6,
                  operation.cost().bytes / seconds / 1e9);
    };
    print(RmsNorm{.x = x, .weight = w, .y = y, .rstd = rstd}, "rms norm");
    print(RmsNormBackward{.x = x, .weight = w, .rstd = rstd, .dy = y, .dx = dx, .dweight = dw},
          "rms norm backward");
    print(SwiGlu{.gate_up = gate_up, .y = act}, "swiglu");
    print(SwiGluBackward{.gate_up = gate_up, .dy = dact, .d_gate_up = dgu, .y = act},
          "swiglu backward");
    print(RouterLogits{.x = x, .w = w, .s = s}, "router logits");
    print(RouterBackward{.ds = s, .x = x, .w = w, .dx = dx, .dw = dw}, "router backward");
    print(SelectTopK{.z = s.Reshape({1, n}), .k = n / 16, .index = index}, "select top k");
    print(Axpby{.x = x, .y = y}, "axpby");
  }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
};

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  fathom::Benchmark benchmark(argc > 1 ? std::atoi(argv[1]) : 2);
  benchmark.Products(fathom::DType::kFloat32);
  benchmark.Products(fathom::DType::kBFloat16);
  benchmark.AttentionOf(8192, 16, 8, 64);
  benchmark.AttentionOf(256, 4, 2, 32);
  benchmark.AttentionOf(128, 16, 8, 8);
  benchmark.AttentionOf(8, 16, 8, 8);
  benchmark.Rows();
  return 0;
}
