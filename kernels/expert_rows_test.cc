#include "kernels/expert_rows.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::GradientError;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;
using testing::View;

Tensor Rows(std::vector<int32_t>& elements, int64_t columns) {
  return View(elements).Reshape({static_cast<int64_t>(elements.size()) / columns, columns});
}

// `routed` of `experts` for each row, ascending, the same for the same seed.
std::vector<int32_t> RandomChoice(uint64_t seed, int64_t rows, int64_t experts, int64_t routed) {
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<std::pair<double, int32_t>> order;
    for (int32_t e = 0; e < experts; ++e) order.push_back({NormalAt(seed, i, e), e});
    std::sort(order.begin(), order.end());
    std::vector<int32_t> ids;
    for (int64_t j = 0; j < routed; ++j) ids.push_back(order[j].second);
    std::sort(ids.begin(), ids.end());
    chosen.insert(chosen.end(), ids.begin(), ids.end());
  }
  return chosen;
}

// Sorts all assignments by (expert, row), of the rows in use alone, and compares.
void ExpectSorted(std::vector<int32_t> experts, int64_t routed, int32_t used) {
  Cpu cpu;
  const int64_t places = experts.size();
  std::vector<int32_t> row(places, -1), slot(places, -1), count = {used};
  cpu(SortByExpert{.experts = Rows(experts, routed),
                   .count = View(count),
                   .row = View(row),
                   .slot = Rows(slot, routed)});
  std::vector<int32_t> order(used * routed);  // assignments i * routed + j
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return experts[a] < experts[b]; });
  std::vector<int32_t> expected_row(places, -1), expected_slot(places, -1);
  for (int64_t place = 0; place < order.size(); ++place) {
    expected_row[place] = order[place] / routed;
    expected_slot[order[place]] = place;
  }
  EXPECT_EQ(row, expected_row);
  EXPECT_EQ(slot, expected_slot);
}

TEST(ExpertRowsTest, SortsByExpertThenRow) {
  ExpectSorted(RandomChoice(1, 500, 64, 6), 6, 500);
  ExpectSorted(RandomChoice(1, 500, 64, 6), 6, 333);
  ExpectSorted(RandomChoice(2, 40, 3, 3), 3, 40);
  ExpectSorted(RandomChoice(3, 2, 1000, 5), 5, 2);   // more experts than rows
  ExpectSorted(std::vector<int32_t>(60, 7), 1, 59);  // all to one expert
  ExpectSorted(RandomChoice(1, 10, 8, 2), 2, 0);
}

TEST(ExpertRowsTest, SortsNoRows) {
  Cpu cpu;
  std::vector<int32_t> none;
  const Tensor empty(none.data(), DType::kInt32, {0, 4});
  cpu(SortByExpert{
      .experts = empty, .row = Tensor(none.data(), DType::kInt32, {0}), .slot = empty});
}

template <class T>
class ExpertRowsTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(ExpertRowsTypedTest, Types);

// Rows, their choice, and what each assignment's expert made of them.
template <class T>
struct Assignments {
  using S = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  Assignments(int64_t rows, int64_t experts, int64_t routed, int64_t d)
      : rows(rows),
        routed(routed),
        d(d),
        chosen(RandomChoice(1, rows, experts, routed)),
        row(rows * routed),
        slot(rows * routed),
        weights(Matrix<S>::Random(2, rows, routed)),
        x(Matrix<T>::Random(3, rows * routed, d)) {
    Cpu cpu;
    cpu(SortByExpert{
        .experts = Rows(chosen, routed), .row = View(row), .slot = Rows(slot, routed)});
  }
  Tensor slots() { return Rows(slot, routed); }

  int64_t rows, routed, d;
  std::vector<int32_t> chosen, row, slot;
  Matrix<S> weights;
  Matrix<T> x;
};

TYPED_TEST(ExpertRowsTypedTest, CombineAddsTheWeightedRows) {
  using T = TypeParam;
  using S = typename Assignments<T>::S;
  for (const int64_t d : {1, 70, 600}) {
    Assignments<T> a(130, 16, 3, d);
    std::vector<int32_t> count = {120};
    for (const bool weighs : {false, true}) {
      Matrix<T> first(a.rows, d);
      for (const int threads : {1, 2}) {
        Cpu cpu(threads);
        Matrix<T> y(a.rows, d);
        y.Randomize(4, 120);
        Matrix<double> expected(a.rows, d);
        for (int64_t i = 0; i < 120; ++i) {
          for (int64_t c = 0; c < d; ++c) {
            expected(i, c) = static_cast<double>(y(i, c));
            for (int64_t j = 0; j < a.routed; ++j) {
              expected(i, c) += (weighs ? static_cast<double>(a.weights(i, j)) : 1) *
                                static_cast<double>(a.x(a.slot[i * a.routed + j], c));
            }
          }
        }
        cpu(CombineExperts{.x = a.x.tensor(),
                           .slot = a.slots(),
                           .weights = weighs ? a.weights.tensor() : Tensor(),
                           .y = y.tensor(),
                           .count = View(count)});
        EXPECT_LT(Difference(y, expected, 120), kTolerance<T>);
        EXPECT_TRUE(y.UntouchedBeyond(120));
        if (threads == 1) first = y;
        for (int64_t i = 0; i < 120; ++i) EXPECT_TRUE(SameBits(&y(i, 0), &first(i, 0), d));
      }
    }
  }
  // Sums are in the type of statistics: three times 3/8 of bfloat16's last digit change it.
  Cpu cpu;
  Matrix<T> x(3, 1), y(1, 1);
  Matrix<S> weights(1, 3);
  std::vector<int32_t> slot = {2, 0, 1};
  const T one = static_cast<T>(1), unit = static_cast<T>(1.0 / 128);
  for (int64_t j = 0; j < 3; ++j) {
    x(j, 0) = unit;
    weights(0, j) = static_cast<S>(0.375);
  }
  y(0, 0) = one;
  cpu(CombineExperts{
      .x = x.tensor(), .slot = Rows(slot, 3), .weights = weights.tensor(), .y = y.tensor()});
  EXPECT_EQ(static_cast<double>(y(0, 0)),
            static_cast<double>(static_cast<T>(static_cast<S>(1 + 1.125 / 128))));
}

TYPED_TEST(ExpertRowsTypedTest, ExpertsThatCopyGiveTheRowsBack) {
  using T = TypeParam;
  Cpu cpu;
  Assignments<T> a(90, 5, 1, 33);
  Matrix<T> x = Matrix<T>::Random(5, a.rows, a.d), sorted(a.rows, a.d), y(a.rows, a.d);
  cpu(Fill{.value = 0, .y = y.tensor()});
  cpu(GatherRows{.x = x.tensor(), .index = View(a.row), .y = sorted.tensor()});
  cpu(CombineExperts{.x = sorted.tensor(), .slot = a.slots(), .y = y.tensor()});
  EXPECT_EQ(Difference(y, x), 0);
}

TYPED_TEST(ExpertRowsTypedTest, CombineBackwardFollowsTheFormula) {
  using T = TypeParam;
  using S = typename Assignments<T>::S;
  const int64_t d = 300, used = 70;
  Assignments<T> a(80, 16, 3, d);
  std::vector<int32_t> count = {static_cast<int32_t>(used)};
  Matrix<T> dy = Matrix<T>::Random(5, a.rows, d);
  Matrix<S> first(a.rows, a.routed);
  for (const int threads : {1, 2}) {
    Cpu cpu(threads);
    Matrix<T> dx(a.x.rows, d);
    Matrix<S> d_weights(a.rows, a.routed);
    cpu(CombineExpertsBackward{.dy = dy.tensor(),
                               .x = a.x.tensor(),
                               .slot = a.slots(),
                               .weights = a.weights.tensor(),
                               .dx = dx.tensor(),
                               .d_weights = d_weights.tensor(),
                               .count = View(count)});
    Matrix<double> expected(used, a.routed);
    std::vector<bool> written(dx.rows);
    for (int64_t i = 0; i < used; ++i) {
      for (int64_t j = 0; j < a.routed; ++j) {
        const int32_t slot = a.slot[i * a.routed + j];
        written[slot] = true;
        expected(i, j) = 0;
        for (int64_t c = 0; c < d; ++c) {
          const double gradient = static_cast<double>(dy(i, c));
          expected(i, j) += gradient * static_cast<double>(a.x(slot, c));
          const double expected_dx = gradient * static_cast<double>(a.weights(i, j));
          ASSERT_NEAR(static_cast<double>(dx(slot, c)), expected_dx,
                      kTolerance<T> * (std::abs(expected_dx) + 1e-3));
        }
      }
    }
    for (int64_t p = 0; p < dx.rows; ++p) {
      EXPECT_NE(std::isnan(static_cast<double>(dx(p, 0))), written[p]) << p;
    }
    EXPECT_LT(Difference(d_weights, expected, used), kTolerance<S>);
    EXPECT_TRUE(d_weights.UntouchedBeyond(used));
    if (threads == 1) first = d_weights;
    for (int64_t i = 0; i < used; ++i) {
      EXPECT_TRUE(SameBits(&d_weights(i, 0), &first(i, 0), a.routed));
    }
  }
}

TEST(ExpertRowsTest, CombineBackwardAgreesWithFiniteDifferences) {
  Cpu cpu;
  Assignments<double> a(7, 5, 3, 4);
  Matrix<double> dy = Matrix<double>::Random(5, a.rows, a.d), y(a.rows, a.d);
  Matrix<double> dx(a.x.rows, a.d), d_weights(a.rows, a.routed), dx_alone(a.x.rows, a.d);
  cpu(CombineExpertsBackward{.dy = dy.tensor(),
                             .x = a.x.tensor(),
                             .slot = a.slots(),
                             .weights = a.weights.tensor(),
                             .dx = dx.tensor(),
                             .d_weights = d_weights.tensor()});
  bool weighs = true;
  const auto loss = [&] {
    cpu(Fill{.value = 0.5, .y = y.tensor()});
    cpu(CombineExperts{.x = a.x.tensor(),
                       .slot = a.slots(),
                       .weights = weighs ? a.weights.tensor() : Tensor(),
                       .y = y.tensor()});
    return testing::InnerProduct(y, dy);
  };
  EXPECT_LT(GradientError(a.x, dx, loss), 1e-9);
  EXPECT_LT(GradientError(a.weights, d_weights, loss), 1e-9);

  weighs = false;
  cpu(CombineExpertsBackward{.dy = dy.tensor(), .slot = a.slots(), .dx = dx_alone.tensor()});
  EXPECT_LT(GradientError(a.x, dx_alone, loss), 1e-9);
}

TEST(ExpertRowsDeathTest, SlotsThatDoNotExist) {
  Cpu cpu(1);
  Matrix<float> x = Matrix<float>::Random(1, 2, 3), y = Matrix<float>::Random(2, 1, 3);
  std::vector<int32_t> slot = {1, 2};
  EXPECT_DEATH(cpu(CombineExperts{.x = x.tensor(), .slot = Rows(slot, 2), .y = y.tensor()}),
               "slot 2 of 2");
}

TEST(ExpertRowsTest, RowsInWindowsAddUpToTheWhole) {
  Cpu cpu;
  const auto rows_in = [&](int32_t of_all, int64_t begin, int64_t end) {
    std::vector<int32_t> count = {of_all}, window_count = {-1};
    cpu(RowsInWindow{
        .count = View(count), .begin = begin, .end = end, .window_count = View(window_count)});
    return window_count[0];
  };
  EXPECT_EQ(rows_in(10, 0, 4), 4);
  EXPECT_EQ(rows_in(10, 8, 12), 2);
  EXPECT_EQ(rows_in(10, 10, 12), 0);
  EXPECT_EQ(rows_in(10, 20, 30), 0);
  EXPECT_EQ(rows_in(10, 3, 3), 0);
  EXPECT_EQ(rows_in(0, 0, 4), 0);
  for (int32_t count = 0; count <= 12; ++count) {
    EXPECT_EQ(rows_in(count, 0, 5) + rows_in(count, 5, 6) + rows_in(count, 6, 12), count);
  }
}

TEST(ExpertRowsTest, ExpertMajorOrderAndItsInverse) {
  Cpu cpu;
  for (const auto& [sources, experts] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 6}, {5, 1}, {4, 7}, {3, 64}}) {
    // What a row is, source by source; -1 for places beyond the rows.
    std::vector<std::array<int64_t, 3>> received;  // expert, source, number
    std::vector<int32_t> counts;
    for (int64_t s = 0; s < sources; ++s) {
      for (int64_t e = 0; e < experts; ++e) {
        counts.push_back((s * 5 + e * 3 + 2) % 4);  // with zeros
        for (int64_t r = 0; r < counts.back(); ++r) received.push_back({e, s, r});
      }
    }
    const int64_t rows = received.size();
    std::vector<int32_t> forward(rows + 2, -1), back(rows + 2, -1);
    cpu(ExpertMajorOrder{.counts = Rows(counts, experts),
                         .to_expert_major = View(forward),
                         .to_source_major = View(back)});
    std::vector<std::array<int64_t, 3>> expected = received;
    std::sort(expected.begin(), expected.end());
    for (int64_t p = 0; p < rows; ++p) {
      EXPECT_EQ(received[forward[p]], expected[p]);
      EXPECT_EQ(back[forward[p]], p);
    }
    for (int64_t p = rows; p < rows + 2; ++p) EXPECT_EQ(forward[p] + back[p], -2);
  }
}

TEST(ExpertRowsTest, ExpertMajorOrderOfNoRows) {
  Cpu cpu;
  std::vector<int32_t> counts(6, 0), forward(1, -1), back(1, -1);
  cpu(ExpertMajorOrder{
      .counts = Rows(counts, 3), .to_expert_major = View(forward), .to_source_major = View(back)});
  EXPECT_EQ(forward[0], -1);
}

TEST(ExpertRowsTest, CostsCountWhatIsUsed) {
  const auto floats = [](Shape shape) { return Tensor(nullptr, DType::kFloat32, shape); };
  Matrix<float> real(1, 2);
  const CombineExpertsBackward backward{.dy = real.tensor(),
                                        .x = floats({2, 2}),
                                        .slot = {},
                                        .weights = {},
                                        .dx = real.tensor(),
                                        .d_weights = {}};
  EXPECT_EQ(backward.cost().bytes, 2 * 2 * 4);  // x is not read
}

}  // namespace
}  // namespace fathom
