#include "parallel/element_range.h"

#include "gtest/gtest.h"
#include "parallel/counts.h"

namespace fathom {
namespace {

TEST(ShardsTest, FlatShards) {
  EXPECT_EQ(FlatShard(10, 4, 0), (ElementRange{0, 3}));
  EXPECT_EQ(FlatShard(10, 4, 1), (ElementRange{3, 6}));
  EXPECT_EQ(FlatShard(10, 4, 2), (ElementRange{6, 8}));
  EXPECT_EQ(FlatShard(10, 4, 3), (ElementRange{8, 10}));
  EXPECT_EQ(FlatShard(1, 3, 2), (ElementRange{1, 1}));
  const int64_t billions = (int64_t{1} << 31) + 8;
  EXPECT_EQ(FlatShard(billions, 3, 2), (ElementRange{1431655771, billions}));
}

TEST(ShardsTest, AreThoseOfEvenCounts) {
  for (const int64_t total : {0, 1, 7, 64, 1000}) {
    for (const int ranks : {1, 2, 3, 8, 200}) {
      const std::vector<int64_t> offsets = Offsets(EvenCounts(total, ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(FlatShard(total, ranks, rank), (ElementRange{offsets[rank], offsets[rank + 1]}));
      }
    }
  }
}

}  // namespace
}  // namespace fathom
