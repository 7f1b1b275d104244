#include "runtime/checkpoint/slice.h"

#include <gtest/gtest.h>

#include <map>

namespace fathom {
namespace {

constexpr int64_t kRows = 5, kColumns = 7;
const Shape kMatrix = {kRows, kColumns};

// Each element of the slice by its place in the matrix, found one by one.
std::vector<int64_t> Elements(const TensorSlice& slice) {
  std::vector<int64_t> of_part;
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    const int64_t index = slice.part.dim == 0 ? i / kColumns : i % kColumns;
    if (slice.part.whole() || (index >= slice.part.begin && index < slice.part.end)) {
      of_part.push_back(i);
    }
  }
  return {of_part.begin() + slice.range.begin, of_part.begin() + slice.range.end};
}

// All slices of some parts.
std::vector<TensorSlice> Slices() {
  std::vector<TensorSlice> slices;
  for (const TensorPart& part : {TensorPart{}, TensorPart{0, 1, 4}, TensorPart{1, 0, 3},
                                 TensorPart{1, 2, 7}, TensorPart{1, 3, 4}}) {
    const int64_t elements = part.ShapeOf(kMatrix).elements();
    for (int64_t begin = 0; begin <= elements; begin += 3) {
      for (int64_t end = begin; end <= elements; end += 2) slices.push_back({part, {begin, end}});
    }
  }
  return slices;
}

TEST(SliceTest, OverlapsAreThoseOfTheirElements) {
  const std::vector<TensorSlice> slices = Slices();
  for (const TensorSlice& a : slices) {
    const std::vector<int64_t> of_a = Elements(a);
    ASSERT_EQ(of_a.size(), a.elements());
    for (const TensorSlice& b : slices) {
      const std::vector<int64_t> of_b = Elements(b);
      std::map<int64_t, int64_t> expected, found;  // place in a to place in b
      for (size_t i = 0; i < of_a.size(); ++i) {
        for (size_t j = 0; j < of_b.size(); ++j) {
          if (of_a[i] == of_b[j]) expected[i] = j;
        }
      }
      VisitOverlap(RunsOf(kMatrix, a), RunsOf(kMatrix, b),
                   [&](int64_t in_a, int64_t in_b, int64_t count) {
                     for (int64_t i = 0; i < count; ++i) {
                       EXPECT_TRUE(found.emplace(in_a + i, in_b + i).second);
                     }
                   });
      ASSERT_EQ(found, expected);
    }
  }
}

TEST(SliceTest, ScalarsAreOneElement) {
  const std::vector<SliceRun> runs = RunsOf({}, TensorSlice::Whole({}));
  ASSERT_EQ(runs.size(), 1);
  EXPECT_EQ(runs[0].count, 1);
}

}  // namespace
}  // namespace fathom
