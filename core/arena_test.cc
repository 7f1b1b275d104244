#include "core/arena.h"

#include <gtest/gtest.h>

#include "core/cpu_device.h"

namespace fathom {
namespace {

TEST(Arena, GivesBackInReverseOrderAndReusesMemory) {
  CpuDevice device(1);
  Arena arena(device, 4096);
  const Tensor a = arena.New(DType::kFloat32, {10});
  const Arena::Mark mark = arena.mark();
  const Tensor b = arena.New(DType::kFloat32, {10});
  EXPECT_NE(a.raw(), b.raw());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.raw()) % 64, 0);
  EXPECT_EQ(arena.bytes_in_use(), 128);
  arena.Release(mark);
  EXPECT_EQ(arena.bytes_in_use(), 64);
  EXPECT_EQ(arena.New(DType::kFloat64, {3}).raw(), b.raw());
  EXPECT_EQ(arena.peak_bytes(), 128);
}

TEST(Arena, GrowsByBlocksAndKeepsThem) {
  CpuDevice device(1);
  Arena arena(device, 1024);
  void* second = nullptr;
  {
    ArenaScope scope(arena);
    arena.New(DType::kFloat32, {200});
    second = arena.New(DType::kFloat32, {200}).raw();  // does not fit beside the first
    const Tensor large = arena.New(DType::kFloat32, {5000});
    large.data<float>()[4999] = 1;
  }
  EXPECT_EQ(arena.bytes_in_use(), 0);
  arena.New(DType::kFloat32, {200});
  EXPECT_EQ(arena.New(DType::kFloat32, {200}).raw(), second);
}

TEST(Arena, CountsTheSameOnTheDryDevice) {
  const std::unique_ptr<Device> dry = NewDryDevice();
  Arena arena(*dry);
  // Far more than the machine has: nothing is allocated.
  const Tensor huge = arena.New(DType::kFloat32, {int64_t{1} << 40});
  EXPECT_FALSE(huge.absent());
  EXPECT_EQ(arena.peak_bytes(), int64_t{4} << 40);
}

}  // namespace
}  // namespace fathom
