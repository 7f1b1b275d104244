#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gated_residual.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/router.h"
#include "kernels/swiglu.h"
#include "kernels/testing.h"

// Operations on bfloat16 against the same operations on doubles, which their own tests compare with
// plain loops: from the same operands every result must be the double's, rounded once. Products of
// matrices stand in matmul_test.
namespace fathom {
namespace {

using testing::Cpu;
using testing::Matrix;
using testing::View;

// An operand in both types, equal in value.
struct Pair {
  Pair(int64_t rows, int64_t columns) : narrow(rows, columns), wide(rows, columns) {}
  static Pair Random(uint64_t seed, int64_t rows, int64_t columns, double size = 1) {
    Pair pair(rows, columns);
    pair.narrow.Randomize(seed, rows, size);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        pair.wide(i, j) = static_cast<double>(pair.narrow(i, j));
      }
    }
    return pair;
  }
  Matrix<BFloat16> narrow;
  Matrix<double> wide;
};

// The same of statistics: float beside bfloat16.
struct StatPair {
  StatPair(int64_t rows, int64_t columns) : narrow(rows, columns), wide(rows, columns) {}
  static StatPair Random(uint64_t seed, int64_t rows, int64_t columns, double size = 1) {
    StatPair pair(rows, columns);
    pair.narrow.Randomize(seed, rows, size);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) pair.wide(i, j) = pair.narrow(i, j);
    }
    return pair;
  }
  Matrix<float> narrow;
  Matrix<double> wide;
};

double LargestOf(const Matrix<double>& x) {
  double largest = 0;
  for (int64_t i = 0; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) largest = std::max(largest, std::abs(x(i, j)));
  }
  return largest;
}

// Each element within half a unit of bfloat16, besides float's rounding before it.
void ExpectRounded(const Pair& pair) {
  const double floor = 1e-5 * LargestOf(pair.wide);
  for (int64_t i = 0; i < pair.wide.rows; ++i) {
    for (int64_t j = 0; j < pair.wide.columns; ++j) {
      const double expected = pair.wide(i, j);
      ASSERT_NEAR(static_cast<double>(pair.narrow(i, j)), expected,
                  std::abs(expected) / 256 * 1.001 + floor)
          << i << " " << j;
    }
  }
  EXPECT_TRUE(pair.narrow.UntouchedBeyond(pair.narrow.rows));
}

void ExpectClose(const StatPair& pair) {
  EXPECT_LT(testing::Difference(pair.narrow, pair.wide), 1e-5);
}

TEST(BFloat16KernelsTest, CopyRoundsToNearest) {
  Cpu cpu;
  Matrix<float> x(1, 4), back(1, 4);
  x(0, 0) = 1.00390625f;  // a tie, to even
  x(0, 1) = -1.01171875f;
  x(0, 2) = std::numeric_limits<float>::infinity();
  x(0, 3) = 3.14159265f;
  Matrix<BFloat16> y(1, 4);
  cpu(Copy{.x = x.tensor(), .y = y.tensor()});
  EXPECT_EQ(y(0, 0).bits, 0x3f80);
  EXPECT_EQ(y(0, 1).bits, 0xbf82);
  EXPECT_EQ(y(0, 2).bits, 0x7f80);
  EXPECT_EQ(y(0, 3).bits, 0x4049);
  cpu(Copy{.x = y.tensor(), .y = back.tensor()});
  EXPECT_EQ(back(0, 3), 3.140625f);
}

TEST(BFloat16KernelsTest, Elementwise) {
  Cpu cpu;
  const Pair x = Pair::Random(1, 5, 77);
  Pair x_copy = x, y = Pair::Random(2, 5, 77);
  cpu(Axpby{.a = 0.3, .x = x_copy.narrow.tensor(), .b = -2, .y = y.narrow.tensor()});
  cpu(Axpby{.a = 0.3, .x = x_copy.wide.tensor(), .b = -2, .y = y.wide.tensor()});
  ExpectRounded(y);

  Matrix<BFloat16> filled(2, 3);
  cpu(Fill{.value = 0.1, .y = filled.tensor()});
  EXPECT_EQ(filled(1, 2).bits, 0x3dcd);
}

TEST(BFloat16KernelsTest, Embedding) {
  Cpu cpu;
  const int64_t n = 300, d = 40, vocabulary = 7;
  Pair table = Pair::Random(1, vocabulary, d), x(n, d), dx = Pair::Random(2, n, d);
  StatPair d_table = StatPair::Random(3, vocabulary, d);
  std::vector<int32_t> tokens(n);
  for (int64_t i = 0; i < n; ++i) tokens[i] = i * i % vocabulary;
  cpu(Embedding{.tokens = View(tokens), .table = table.narrow.tensor(), .x = x.narrow.tensor()});
  cpu(Embedding{.tokens = View(tokens), .table = table.wide.tensor(), .x = x.wide.tensor()});
  EXPECT_EQ(testing::Difference(x.narrow, x.wide), 0);
  cpu(EmbeddingBackward{
      .tokens = View(tokens), .dx = dx.narrow.tensor(), .d_table = d_table.narrow.tensor()});
  cpu(EmbeddingBackward{
      .tokens = View(tokens), .dx = dx.wide.tensor(), .d_table = d_table.wide.tensor()});
  ExpectClose(d_table);
}

TEST(BFloat16KernelsTest, Norm) {
  Cpu cpu;
  const int64_t m = 70, d = 100;
  Pair x = Pair::Random(1, m, d), addend = Pair::Random(2, m, d), sum(m, d), y(m, d);
  StatPair weight = StatPair::Random(3, 1, d), rstd(1, m), dweight = StatPair::Random(6, 1, d);
  cpu(RmsNorm{.x = x.narrow.tensor(),
              .addend = addend.narrow.tensor(),
              .weight = weight.narrow.vector(),
              .sum = sum.narrow.tensor(),
              .y = y.narrow.tensor(),
              .rstd = rstd.narrow.vector()});
  cpu(RmsNorm{.x = x.wide.tensor(),
              .addend = addend.wide.tensor(),
              .weight = weight.wide.vector(),
              .sum = sum.wide.tensor(),
              .y = y.wide.tensor(),
              .rstd = rstd.wide.vector()});
  ExpectRounded(sum);
  ExpectRounded(y);
  ExpectClose(rstd);

  Pair dy = Pair::Random(4, m, d), base = Pair::Random(5, m, d), dx(m, d);
  cpu(RmsNormBackward{.x = x.narrow.tensor(),
                      .addend = addend.narrow.tensor(),
                      .weight = weight.narrow.vector(),
                      .rstd = rstd.narrow.vector(),
                      .dy = dy.narrow.tensor(),
                      .base = base.narrow.tensor(),
                      .dx = dx.narrow.tensor(),
                      .dweight = dweight.narrow.vector()});
  cpu(RmsNormBackward{.x = x.wide.tensor(),
                      .addend = addend.wide.tensor(),
                      .weight = weight.wide.vector(),
                      .rstd = rstd.wide.vector(),
                      .dy = dy.wide.tensor(),
                      .base = base.wide.tensor(),
                      .dx = dx.wide.tensor(),
                      .dweight = dweight.wide.vector()});
  ExpectRounded(dx);
  ExpectClose(dweight);
}

TEST(BFloat16KernelsTest, HeadNormRotary) {
  Cpu cpu;
  const int64_t m = 33, heads = 3, h = 10;
  Pair x = Pair::Random(1, m, heads * h), y(m, heads * h);
  Pair dy = Pair::Random(2, m, heads * h), dx(m, heads * h);
  StatPair weight = StatPair::Random(3, 1, h), rstd(m, heads), dweight = StatPair::Random(4, 1, h);
  StatPair cosine(64, h / 2), sine(64, h / 2);
  cpu(RotaryTables{.cosine = cosine.narrow.tensor(), .sine = sine.narrow.tensor()});
  cpu(RotaryTables{.cosine = cosine.wide.tensor(), .sine = sine.wide.tensor()});
  std::vector<int32_t> positions(m);
  for (int64_t i = 0; i < m; ++i) positions[i] = i * 7 % 64;
  const auto run = [&](auto side) {
    cpu(HeadNormRotary{.x = side(x).tensor(),
                       .weight = side(weight).vector(),
                       .positions = View(positions),
                       .cosine = side(cosine).tensor(),
                       .sine = side(sine).tensor(),
                       .y = side(y).tensor(),
                       .rstd = side(rstd).tensor()});
    cpu(HeadNormRotaryBackward{.x = side(x).tensor(),
                               .weight = side(weight).vector(),
                               .positions = View(positions),
                               .cosine = side(cosine).tensor(),
                               .sine = side(sine).tensor(),
                               .rstd = side(rstd).tensor(),
                               .dy = side(dy).tensor(),
                               .dx = side(dx).tensor(),
                               .dweight = side(dweight).vector()});
  };
  run([](auto& pair) -> auto& { return pair.narrow; });
  run([](auto& pair) -> auto& { return pair.wide; });
  ExpectRounded(y);
  ExpectClose(rstd);
  ExpectRounded(dx);
  ExpectClose(dweight);
}

TEST(BFloat16KernelsTest, SwiGlu) {
  Cpu cpu;
  const int64_t m = 20, f = 70;
  Pair gate_up = Pair::Random(1, m, 2 * f, 2), y(m, f), y_again(m, f);
  Pair dy = Pair::Random(2, m, f), d_gate_up(m, 2 * f);
  const auto run = [&](auto side) {
    cpu(SwiGlu{.gate_up = side(gate_up).tensor(), .y = side(y).tensor()});
    cpu(SwiGluBackward{.gate_up = side(gate_up).tensor(),
                       .dy = side(dy).tensor(),
                       .d_gate_up = side(d_gate_up).tensor(),
                       .y = side(y_again).tensor()});
  };
  run([](auto& pair) -> auto& { return pair.narrow; });
  run([](auto& pair) -> auto& { return pair.wide; });
  ExpectRounded(y);
  ExpectRounded(y_again);
  ExpectRounded(d_gate_up);
}

TEST(BFloat16KernelsTest, Router) {
  Cpu cpu;
  const int64_t n = 90, d = 50;
  Pair x = Pair::Random(1, n, d), dx = Pair::Random(2, n, d);
  StatPair w = StatPair::Random(3, 1, d), s(1, n), ds = StatPair::Random(4, 1, n);
  StatPair dw = StatPair::Random(5, 1, d);
  const auto run = [&](auto side) {
    cpu(RouterLogits{.x = side(x).tensor(), .w = side(w).vector(), .s = side(s).vector()});
    cpu(RouterBackward{.ds = side(ds).vector(),
                       .x = side(x).tensor(),
                       .w = side(w).vector(),
                       .dx = side(dx).tensor(),
                       .dw = side(dw).vector()});
  };
  run([](auto& pair) -> auto& { return pair.narrow; });
  run([](auto& pair) -> auto& { return pair.wide; });
  ExpectClose(s);
  ExpectRounded(dx);
  ExpectClose(dw);
}

TEST(BFloat16KernelsTest, GatedResidual) {
  Cpu cpu;
  const int64_t n = 40, m = 15, d = 60;
  std::vector<int32_t> index(m);
  for (int64_t i = 0; i < m; ++i) index[i] = 2 * i + 3;
  for (const Gate gate : {Gate::kNone, Gate::kMod, Gate::kXMod}) {
    Pair x = Pair::Random(1, m, d), a = Pair::Random(2, m, d), f = Pair::Random(3, m, d);
    Pair y = Pair::Random(4, n, d), d_x(m, d), d_f(m, d);
    StatPair z = StatPair::Random(5, 1, n), scale = StatPair::Random(6, 1, 1), dz(1, m);
    StatPair d_scale = StatPair::Random(7, 1, 1);
    const auto run = [&](auto side) {
      cpu(GatedResidual{.gate = gate,
                        .x = side(x).tensor(),
                        .a = side(a).tensor(),
                        .f = side(f).tensor(),
                        .z = side(z).vector(),
                        .scale = side(scale).vector(),
                        .index = View(index),
                        .y = side(y).tensor()});
      cpu(GatedResidualBackward{.gate = gate,
                                .dy = side(x).tensor(),
                                .a = side(a).tensor(),
                                .f = side(f).tensor(),
                                .z = side(z).vector(),
                                .scale = side(scale).vector(),
                                .d_x = side(d_x).tensor(),
                                .d_f = side(d_f).tensor(),
                                .dz = side(dz).vector(),
                                .d_scale = side(d_scale).vector()});
    };
    run([](auto& pair) -> auto& { return pair.narrow; });
    run([](auto& pair) -> auto& { return pair.wide; });
    ExpectRounded(y);
    ExpectRounded(d_x);
    ExpectRounded(d_f);
    ExpectClose(dz);
    ExpectClose(d_scale);
  }
}

// Scores, softmax, its product with the values and all gradients are in float from operands in
// bfloat16; only o is rounded before backward reads it.
TEST(BFloat16KernelsTest, Attention) {
  Cpu cpu;
  const int64_t heads = 4, kv_heads = 2, h = 10, m = 420;
  std::vector<int32_t> segments = {0, 5, 90, 420};
  Pair q = Pair::Random(1, m, heads * h), k = Pair::Random(2, m, kv_heads * h);
  Pair v = Pair::Random(3, m, kv_heads * h), d_o = Pair::Random(4, m, heads * h);
  Pair o(m, heads * h), dq(m, heads * h), dk(m, kv_heads * h), dv(m, kv_heads * h);
  StatPair lse(m, heads);
  const auto forward = [&](auto side) {
    cpu(Attention{.q = side(q).tensor(),
                  .k = side(k).tensor(),
                  .v = side(v).tensor(),
                  .segments = View(segments),
                  .heads = heads,
                  .kv_heads = kv_heads,
                  .scale = 0.3,
                  .o = side(o).tensor(),
                  .lse = side(lse).tensor()});
  };
  const auto backward = [&](auto side) {
    cpu(AttentionBackward{.q = side(q).tensor(),
                          .k = side(k).tensor(),
                          .v = side(v).tensor(),
                          .segments = View(segments),
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .scale = 0.3,
                          .o = side(o).tensor(),
                          .lse = side(lse).tensor(),
                          .d_o = side(d_o).tensor(),
                          .dq = side(dq).tensor(),
                          .dk = side(dk).tensor(),
                          .dv = side(dv).tensor()});
  };
  const auto narrow = [](auto& pair) -> auto& { return pair.narrow; };
  const auto wide = [](auto& pair) -> auto& { return pair.wide; };
  forward(narrow);
  forward(wide);
  ExpectRounded(o);
  ExpectClose(lse);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < heads * h; ++j) o.wide(i, j) = static_cast<double>(o.narrow(i, j));
  }
  backward(narrow);
  backward(wide);
  ExpectRounded(dq);
  ExpectRounded(dk);
  ExpectRounded(dv);
}

TEST(BFloat16KernelsTest, CrossEntropyHasLogitsInFloat) {
  Cpu cpu;
  const int64_t rows = 12, vocabulary = 203;
  StatPair logits = StatPair::Random(1, rows, vocabulary, 4), losses(1, rows);
  Pair d_logits(rows, vocabulary);
  std::vector<int32_t> labels(rows);
  for (int64_t i = 0; i < rows; ++i) labels[i] = i == 3 ? -100 : i * 17 % vocabulary;
  const auto run = [&](auto side) {
    cpu(CrossEntropy{.logits = side(logits).tensor(),
                     .labels = View(labels),
                     .d_logits = side(d_logits).tensor(),
                     .scale = 0.25,
                     .losses = side(losses).vector()});
  };
  run([](auto& pair) -> auto& { return pair.narrow; });
  run([](auto& pair) -> auto& { return pair.wide; });
  ExpectClose(losses);
  ExpectRounded(d_logits);
}

TEST(BFloat16KernelsTest, ShardCrossEntropyHasLogitsInFloat) {
  Cpu cpu;
  const int64_t rows = 12, tokens = 203, first_token = 100;
  StatPair logits = StatPair::Random(1, rows, tokens), losses(1, rows);
  StatPair maximum(1, rows), sums = StatPair::Random(2, 2, rows);
  Pair d_logits(rows, tokens);
  std::vector<int32_t> labels(rows);
  for (int64_t i = 0; i < rows; ++i) {
    labels[i] = i == 3 ? -100 : i * 41;  // below, in and above the shard
    maximum.wide(0, i) = maximum.narrow(0, i) = 1 + 0.25f * i;
    sums.wide(0, i) = sums.narrow(0, i) = 1.5f + i;
  }
  const auto run = [&](auto side) {
    cpu(ShardCrossEntropy{.logits = side(logits).tensor(),
                          .labels = View(labels),
                          .first_token = first_token,
                          .maximum = side(maximum).vector(),
                          .sums = side(sums).tensor(),
                          .d_logits = side(d_logits).tensor(),
                          .scale = 0.25,
                          .losses = side(losses).vector()});
  };
  run([](auto& pair) -> auto& { return pair.narrow; });
  run([](auto& pair) -> auto& { return pair.wide; });
  ExpectClose(losses);
  ExpectRounded(d_logits);
}

}  // namespace
}  // namespace fathom
