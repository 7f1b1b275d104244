#include "kernels/attention.h"

#include <algorithm>
#include <array>

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::GradientError;
using testing::InnerProduct;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;
using testing::View;

struct Case {
  int64_t heads, kv_heads, h;
  std::vector<int32_t> segments;
  int64_t rows() const { return segments.back(); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(h)); }
};

// Queries, keys and values as columns of one matrix, as a joint projection leaves them.
template <class T>
struct Inputs {
  explicit Inputs(const Case& c, int64_t more_rows = 0)
      : width(c.heads * c.h),
        kv_width(c.kv_heads * c.h),
        qkv(c.rows() + more_rows, width + 2 * kv_width) {
    qkv.Randomize(1, c.rows());
  }
  Tensor q() { return qkv.tensor().Columns(0, width); }
  Tensor k() { return qkv.tensor().Columns(width, width + kv_width); }
  Tensor v() { return qkv.tensor().Columns(width + kv_width, width + 2 * kv_width); }
  int64_t width, kv_width;
  Matrix<T> qkv;
};

template <class T>
struct Outputs {
  explicit Outputs(const Case& c, int64_t more_rows = 0)
      : o(c.rows() + more_rows, c.heads * c.h), lse(c.rows() + more_rows, c.heads) {}
  Matrix<T> o, lse;
};

template <class T>
void Compute(Cpu& cpu, const Case& c, Inputs<T>& inputs, Outputs<T>& outputs) {
  std::vector<int32_t> segments = c.segments;
  cpu(Attention{.q = inputs.q(),
                .k = inputs.k(),
                .v = inputs.v(),
                .segments = View(segments),
                .heads = c.heads,
                .kv_heads = c.kv_heads,
                .scale = c.scale(),
                .o = outputs.o.tensor(),
                .lse = outputs.lse.tensor()});
}

// One query row of one head, by the definition.
template <class T>
void ExpectedRow(const Case& c, const Inputs<T>& in, int64_t begin, int64_t i, int64_t head,
                 Outputs<double>& expected) {
  const int64_t kv = head / (c.heads / c.kv_heads);
  std::vector<double> scores;
  double sum = 0;
  for (int64_t j = begin; j <= i; ++j) {
    double score = 0;
    for (int64_t e = 0; e < c.h; ++e) {
      score += static_cast<double>(in.qkv(i, head * c.h + e)) * in.qkv(j, in.width + kv * c.h + e);
    }
    scores.push_back(c.scale() * score);
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  for (double& score : scores) sum += score = std::exp(score - largest);
  expected.lse(i, head) = largest + std::log(sum);
  for (int64_t e = 0; e < c.h; ++e) {
    double o = 0;
    for (int64_t j = begin; j <= i; ++j) {
      o += scores[j - begin] / sum * in.qkv(j, in.width + in.kv_width + kv * c.h + e);
    }
    expected.o(i, head * c.h + e) = o;
  }
}

template <class T>
Outputs<double> Expected(const Case& c, const Inputs<T>& inputs) {
  Outputs<double> expected(c);
  for (size_t s = 0; s + 1 < c.segments.size(); ++s) {
    for (int64_t i = c.segments[s]; i < c.segments[s + 1]; ++i) {
      for (int64_t head = 0; head < c.heads; ++head) {
        ExpectedRow(c, inputs, c.segments[s], i, head, expected);
      }
    }
  }
  return expected;
}

const std::vector<Case>& Cases() {
  static const auto* cases = new std::vector<Case>{
      {1, 1, 8, {0, 1}},          {2, 2, 4, {0, 5, 5, 12, 12}}, {4, 2, 8, {0, 0, 64, 129, 130}},
      {4, 1, 12, {0, 63, 200}},   {2, 1, 32, {0, 400}},         {3, 3, 16, {0, 333, 334, 600}},
      {16, 8, 8, {0, 8, 16, 24}},
  };
  return *cases;
}

template <class T>
class AttentionTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionTypedTest, Types);

TYPED_TEST(AttentionTypedTest, AgreesWithTheDefinition) {
  using T = TypeParam;
  for (const Case& c : Cases()) {
    for (int threads : {1, 2}) {
      Cpu cpu(threads);
      // Rows beyond the last segment hold NaN and must neither be read nor written.
      Inputs<T> inputs(c, 2);
      Outputs<T> outputs(c, 2);
      Compute(cpu, c, inputs, outputs);
      const Outputs<double> expected = Expected(c, inputs);
      EXPECT_LT(Difference(outputs.o, expected.o), kTolerance<T>) << c.rows();
      EXPECT_LT(Difference(outputs.lse, expected.lse), kTolerance<T>) << c.rows();
      EXPECT_TRUE(outputs.o.UntouchedBeyond(c.rows()));
      EXPECT_TRUE(outputs.lse.UntouchedBeyond(c.rows()));
    }
  }
}

TEST(AttentionTest, LargeScoresDoNotOverflow) {
  Cpu cpu;
  const Case c{1, 1, 8, {0, 300}};
  Inputs<float> inputs(c);
  for (float& x : inputs.qkv.data) x *= 30;
  Outputs<float> outputs(c);
  Compute(cpu, c, inputs, outputs);
  EXPECT_LT(Difference(outputs.o, Expected(c, inputs).o), 1e-3);  // scores of 1e4 have 1e-3 left
}

// A row sees the rows up to itself, so nothing after it may show in its bits: neither how long its
// segment is, nor where it stands, nor a broken neighbour.
TEST(AttentionTest, BitsOfARowDependOnEarlierRowsAlone) {
  for (const auto& [heads, kv_heads, h] :
       std::vector<std::array<int64_t, 3>>{{16, 8, 8}, {2, 2, 32}, {2, 1, 64}, {4, 1, 128}}) {
    for (int threads : {1, 2}) {
      Cpu cpu(threads);
      const Case whole{heads, kv_heads, h, {0, 700}};
      Inputs<float> inputs(whole);
      Outputs<float> outputs(whole);
      Compute(cpu, whole, inputs, outputs);
      for (int32_t length : {1, 5, 8, 40, 63, 64, 65, 100, 128, 192, 193, 257, 320, 321, 600}) {
        // The first rows once more, between two segments that are all NaN.
        const Case part{heads, kv_heads, h, {0, 3, 3 + length, 90 + length}};
        Inputs<float> shifted(part);
        std::fill(shifted.qkv.data.begin(), shifted.qkv.data.end(), NAN);
        std::copy_n(&inputs.qkv(0, 0), length * inputs.qkv.stride, &shifted.qkv(3, 0));
        Outputs<float> again(part);
        Compute(cpu, part, shifted, again);
        for (int64_t i = 0; i < length; ++i) {
          ASSERT_TRUE(SameBits(&again.o(3 + i, 0), &outputs.o(i, 0), heads * h))
              << "row " << i << " of " << length << ", h " << h << ", threads " << threads;
          ASSERT_TRUE(SameBits(&again.lse(3 + i, 0), &outputs.lse(i, 0), heads)) << "row " << i;
        }
      }
    }
  }
}

template <class T>
struct Gradients {
  explicit Gradients(const Case& c) : dqkv(c.rows(), (c.heads + 2 * c.kv_heads) * c.h) {}
  Matrix<T> dqkv;
};

template <class T>
void ComputeGradients(Cpu& cpu, const Case& c, Inputs<T>& in, Outputs<T>& out, Matrix<T>& d_o,
                      Gradients<T>& gradients) {
  std::vector<int32_t> segments = c.segments;
  const Tensor d = gradients.dqkv.tensor();
  cpu(AttentionBackward{.q = in.q(),
                        .k = in.k(),
                        .v = in.v(),
                        .segments = View(segments),
                        .heads = c.heads,
                        .kv_heads = c.kv_heads,
                        .scale = c.scale(),
                        .o = out.o.tensor(),
                        .lse = out.lse.tensor(),
                        .d_o = d_o.tensor(),
                        .dq = d.Columns(0, in.width),
                        .dk = d.Columns(in.width, in.width + in.kv_width),
                        .dv = d.Columns(in.width + in.kv_width, in.width + 2 * in.kv_width)});
}

TEST(AttentionTest, GradientsAgreeWithFiniteDifferences) {
  for (const Case& c : std::vector<Case>{{2, 2, 4, {0, 5, 5, 12}},
                                         {4, 1, 3, {0, 7}},
                                         {2, 1, 2, {0, 3, 150}},
                                         {1, 1, 2, {0, 200}}}) {
    Cpu cpu;
    Inputs<double> inputs(c);
    Outputs<double> outputs(c);
    Gradients<double> gradients(c);
    Matrix<double> d_o = Matrix<double>::Random(2, c.rows(), c.heads * c.h);
    Compute(cpu, c, inputs, outputs);
    ComputeGradients(cpu, c, inputs, outputs, d_o, gradients);
    const double error = GradientError(inputs.qkv, gradients.dqkv, [&] {
      Outputs<double> changed(c);
      Compute(cpu, c, inputs, changed);
      return InnerProduct(changed.o, d_o);
    });
    EXPECT_LT(error, 1e-7) << c.rows();
  }
}

TEST(AttentionTest, SinglePrecisionGradientsAgreeWithDouble) {
  for (const Case& c : Cases()) {
    Cpu cpu;
    Inputs<float> inputs(c);
    Inputs<double> inputs64(c);
    std::copy(inputs.qkv.data.begin(), inputs.qkv.data.end(), inputs64.qkv.data.begin());
    Outputs<float> outputs(c);
    Outputs<double> outputs64(c);
    Gradients<float> gradients(c);
    Gradients<double> gradients64(c);
    Matrix<float> d_o = Matrix<float>::Random(2, c.rows(), c.heads * c.h);
    Matrix<double> d_o64(c.rows(), c.heads * c.h);
    std::copy(d_o.data.begin(), d_o.data.end(), d_o64.data.begin());
    Compute(cpu, c, inputs, outputs);
    Compute(cpu, c, inputs64, outputs64);
    ComputeGradients(cpu, c, inputs, outputs, d_o, gradients);
    ComputeGradients(cpu, c, inputs64, outputs64, d_o64, gradients64);
    EXPECT_LT(Difference(gradients.dqkv, gradients64.dqkv), 1e-5) << c.rows();
    EXPECT_TRUE(gradients.dqkv.UntouchedBeyond(c.rows()));

    Cpu single(1);
    Gradients<float> again(c);
    ComputeGradients(single, c, inputs, outputs, d_o, again);
    EXPECT_TRUE(SameBits(again.dqkv.data.data(), gradients.dqkv.data.data(),
                         static_cast<int64_t>(again.dqkv.data.size())));
  }
}

TEST(AttentionTest, CostCountsPairs) {
  std::vector<float> x(1);
  const auto tensor = [&](Shape shape) { return Tensor(x.data(), DType::kFloat32, shape); };
  const Attention forward{.q = tensor({10, 24}), .heads = 3, .kv_heads = 1, .pairs = 55};
  EXPECT_EQ(forward.cost().matrix_flops, 4 * 3 * 8 * 55);
  const AttentionBackward backward{.q = tensor({10, 24}), .heads = 3, .kv_heads = 1, .pairs = 55};
  EXPECT_EQ(backward.cost().matrix_flops, 8 * 3 * 8 * 55);
}

}  // namespace
}  // namespace fathom
