#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <vector>

#include "core/arena.h"
#include "core/cpu_device.h"
#include "kernels/cpu/matmul_tiles.h"
#include "kernels/elementwise.h"
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"

// The products of experts of d 2048 and d_e 768 beside one dense product of the same rows and
// sizes: grouped_matmul_benchmark [THREADS] [REPEATS] [ROWS OF AN EXPERT]...
//
// Both run in turns, so that what else the machine does meets both, and medians are compared. Two
// things bound the grouped product, and stand beside the ratios: it fills the rows of each tile up
// to a number that Gemm's rule allows, and it moves the matrix of each expert between memory and
// cache where a dense product has one, which stays in the cache.
namespace fathom {
namespace {

constexpr int64_t kRows = 4096;  // in all
constexpr int64_t kWidth = 2048;
constexpr int64_t kExpertWidth = 768;
constexpr int64_t kFewestRows = 64;
constexpr int64_t kMostExperts = kRows / kFewestRows;

// What a call took: on the clock, and of the processor by all threads together, which the other
// programs of a busy machine hardly change.
struct Seconds {
  double wall;
  double processor;
};

Seconds SecondsOf(const std::function<void()>& function) {
  const std::clock_t processor = std::clock();
  const auto begin = std::chrono::steady_clock::now();
  function();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  return {wall.count(), static_cast<double>(std::clock() - processor) / CLOCKS_PER_SEC};
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Medians.
struct Comparison {
  double dense;            // seconds on the clock
  double grouped;          // the same
  double ratio;            // of the two calls of a turn
  double processor_ratio;  // the same of the processor's time
};

Comparison Compare(int repeats, const std::function<void()>& dense,
                   const std::function<void()>& grouped) {
  std::vector<double> dense_seconds, grouped_seconds, ratios, processor_ratios;
  dense();
  grouped();
  for (int i = 0; i < repeats; ++i) {
    const Seconds of_dense = SecondsOf(dense), of_grouped = SecondsOf(grouped);
    dense_seconds.push_back(of_dense.wall);
    grouped_seconds.push_back(of_grouped.wall);
    ratios.push_back(of_grouped.wall / of_dense.wall);
    processor_ratios.push_back(of_grouped.processor / of_dense.processor);
  }
  return {Median(dense_seconds), Median(grouped_seconds), Median(ratios), Median(processor_ratios)};
}

// The rows that are computed for `rows` rows of an expert and `columns` columns.
double RowsComputed(int64_t rows, int64_t columns) {
  using Rule = cpu::GemmRule<float>;
  const cpu::Tiles tiles{cpu::DivideUp(rows, Rule::kMaximumRows), 1};
  const cpu::GemmArguments<float> product{.m = rows, .n = columns, .k = 1};
  double computed = 0;
  for (int64_t tile = 0; tile < tiles.count(); ++tile) {
    computed += Rule::Rows(cpu::Tile(product, tiles, tile).m);
  }
  return computed;
}

class Benchmark {
 public:
  Benchmark(int threads, int repeats)
      : device_(threads), stream_(device_.NewStream()), arena_(device_), repeats_(repeats) {}

  // Bytes per second at which all threads together read memory.
  double ReadRate() {
    const ArenaScope scope(arena_);
    const Tensor x = New({1 << 26});
    const Tensor sum = arena_.New(DType::kFloat64, {1});
    std::vector<double> seconds;
    for (int i = 0; i < repeats_; ++i) {
      seconds.push_back(SecondsOf([&] { Launch(*stream_, Sum{.x = x, .sum = sum}); }).wall);
    }
    return x.bytes() / Median(seconds);
  }

  // The products of a layer x [kRows, in] w^T [out, in].
  void Layer(const char* name, int64_t out, int64_t in, const std::vector<int64_t>& loads,
             double read_rate) {
    const ArenaScope scope(arena_);
    const Tensor x = New({kRows, in}), y = New({kRows, out});
    std::vector<Tensor> weights;
    for (int64_t e = 0; e < kMostExperts; ++e) weights.push_back(New({out, in}));
    for (const int64_t rows : loads) {
      const int64_t experts = kRows / rows;
      const std::vector<int64_t> balanced(experts, rows);
      const std::vector<Tensor> w(weights.begin(), weights.begin() + experts);
      const auto print = [&](const char* product, double filled_up, int transfers,
                             const Comparison& c) {
        const double bytes = 1.0 * transfers * (experts - 1) * w[0].bytes();
        std::printf(
            "%-5s %4ld %7ld  %-7s %8.1f %8.1f %7.1f   %5.3f     %5.3f %8.1f%% %7.0f %8.1f%%\n",
            name, rows, experts, product, c.dense * 1e3, c.grouped * 1e3,
            2e-9 * kRows * in * out / c.dense, c.ratio, c.processor_ratio,
            100 * (filled_up / rows - 1), bytes / 1e6, 100 * bytes / read_rate / c.dense);
      };
      print("output", RowsComputed(rows, out), 1,
            Compare(
                repeats_, [&] { LinearForward(*stream_, x, w[0], y); },
                [&] { GroupedLinearForward(*stream_, x, w, balanced, y); }));
      print("input", RowsComputed(rows, in), 1,
            Compare(
                repeats_, [&] { LinearBackwardInput(*stream_, y, w[0], x); },
                [&] { GroupedLinearBackwardInput(*stream_, y, w, balanced, x); }));
      print("weight", rows, 2,  // gradients are read and written
            Compare(
                repeats_, [&] { LinearBackwardWeight(*stream_, y, x, w[0]); },
                [&] { GroupedLinearBackwardWeight(*stream_, y, x, balanced, w); }));
      Refresh(x);
      Refresh(y);
      for (const Tensor& matrix : w) Refresh(matrix);
    }
  }

  // Microseconds that an expert without rows adds to each product.
  void IdleExperts() {
    constexpr int64_t kIdle = 1000;
    const ArenaScope scope(arena_);
    const Tensor x = New({kFewestRows, kWidth}), y = New({kFewestRows, kExpertWidth});
    const std::vector<Tensor> w(kIdle, New({kExpertWidth, kWidth}));
    const std::vector<int64_t> idle(kIdle, 0);
    const auto print = [&](const char* direction, const std::function<void()>& function) {
      std::vector<double> seconds;
      for (int i = 0; i < 101; ++i) seconds.push_back(SecondsOf(function).wall);
      std::printf("an expert without rows, %-6s  %.4f microseconds\n", direction,
                  Median(seconds) / kIdle * 1e6);
    };
    print("output", [&] { GroupedLinearForward(*stream_, x, w, idle, y); });
    print("input", [&] { GroupedLinearBackwardInput(*stream_, y, w, idle, x); });
    print("weight", [&] { GroupedLinearBackwardWeight(*stream_, y, x, idle, w); });
  }

 private:
  Tensor New(Shape shape) {
    const Tensor x = arena_.New(DType::kFloat32, shape);
    Refresh(x);
    return x;
  }

  // Ordinary values: products of denormal ones are slow.
  void Refresh(const Tensor& x) {
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<float>()[i] = 2e-5f * static_cast<float>((i * 7919) % 1009 - 504);
    }
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  int repeats_;
};

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 7;
  std::vector<int64_t> loads;
  for (int i = 3; i < argc; ++i) loads.push_back(std::atoi(argv[i]));
  if (loads.empty()) loads = {64, 128, 256, 512};
  for (const int64_t rows : loads) {
    if (rows >= fathom::kFewestRows && rows <= fathom::kRows) continue;
    std::fprintf(stderr, "An expert has %ld to %ld rows here, not %ld.\n", fathom::kFewestRows,
                 fathom::kRows, rows);
    return 2;
  }
  fathom::Benchmark benchmark(threads, repeats);
  const double read_rate = benchmark.ReadRate();
  std::printf("%d threads, which together read %.1f GB/s; medians of %d turns\n", threads,
              read_rate / 1e9, repeats);
  std::printf(
      "            of an           milliseconds   dense    grouped / dense      rows     other\n"
      "layer rows experts  product    dense  grouped GFLOP/s   time processor    added    "
      "matrices (MB, of the dense time)\n");
  benchmark.Layer("up", 2 * fathom::kExpertWidth, fathom::kWidth, loads, read_rate);
  benchmark.Layer("down", fathom::kWidth, fathom::kExpertWidth, loads, read_rate);
  benchmark.IdleExperts();
  return 0;
}
