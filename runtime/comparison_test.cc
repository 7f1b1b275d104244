#include "runtime/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ComparisonTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  template <class T>
  void WriteTensor(const std::string& name, const std::vector<T>& values, const Shape& shape,
                   const std::string& tensor = "t") {
    const std::vector<NamedArray> arrays = {
        {.name = tensor, .dtype = DTypeOf<T>, .shape = shape, .data = values.data()}};
    ASSERT_TRUE(WriteSafetensorsFile(files_, Path(name), arrays, {}).ok());
  }

  // Of two files with one tensor "t" each.
  template <class T, class U>
  Comparison CompareTensors(const std::vector<T>& a, const Shape& shape_a, const std::vector<U>& b,
                            const Shape& shape_b, double tolerance) {
    WriteTensor("a", a, shape_a);
    WriteTensor("b", b, shape_b);
    return CompareNames("a", "b", tolerance);
  }
  Comparison CompareVectors(const std::vector<double>& a, const std::vector<double>& b,
                            double tolerance) {
    const Shape shape{static_cast<int64_t>(a.size())};
    return CompareTensors(a, shape, b, shape, tolerance);
  }
  Comparison CompareNames(const std::string& a, const std::string& b, double tolerance) {
    const auto comparison = Compare(files_, Path(a), Path(b), tolerance);
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    return comparison.ok() ? *comparison : Comparison();
  }

  void WriteStep(const std::string& dump, const std::string& record) {
    ASSERT_TRUE(files_.CreateDirectories(Path(dump)).ok());
    WriteTestFile(Path(dump + "/step.json"), record);
  }

  FileSystem& files_ = PosixFileSystem();
  std::string directory_ = NewTestDirectory();
};

TEST_F(ComparisonTest, EqualTensors) {
  const Comparison same = CompareVectors({1, 0.1, -INFINITY}, {1, 0.1, -INFINITY}, 0);
  EXPECT_EQ(same.tensors, 1);
  EXPECT_EQ(same.beyond, 0);
  EXPECT_TRUE(same.differences.empty());
}

TEST_F(ComparisonTest, NamesTensorPlaceAndBothValues) {
  const double b = 0.3, a = std::nextafter(b, 1);
  const Comparison one =
      CompareTensors<double, double>({1, 2, 3, 4, 5, a}, {2, 3}, {1, 2, 3, 4, 5, b}, {2, 3}, 0);
  ASSERT_EQ(one.differences.size(), 1);
  EXPECT_EQ(one.beyond, 1);
  EXPECT_EQ(one.differences[0].where, "t");
  EXPECT_EQ(one.differences[0].what,
            "at [1, 2] 0.30000000000000004 and 0.29999999999999999, relative difference 1.11e-17, "
            "L2 ratio 7.48e-18, 1 of 6 elements differ");
  EXPECT_EQ(one.differences[0].relative, (a - b) / 5);
}

TEST_F(ComparisonTest, MeasuresAgainstTheLargestOfTheSecond) {
  // 0.5 of 4, wherever the largest stands; the L2 ratio is sqrt(0.25 + 0.0625) / 5.
  const Comparison gap = CompareVectors({3.5, -4, 0.25}, {3, -4, 0}, 0.125);
  ASSERT_EQ(gap.differences.size(), 1);
  EXPECT_EQ(gap.differences[0].relative, 0.125);
  EXPECT_FALSE(gap.differences[0].beyond);
  EXPECT_EQ(gap.differences[0].what,
            "at [0] 3.5 and 3, relative difference 0.125, L2 ratio 0.112, 2 of 3 elements differ");
  EXPECT_EQ(CompareVectors({3.5, -4, 0.25}, {3, -4, 0}, 0.1249).beyond, 1);
  EXPECT_EQ(CompareVectors({1e-300}, {0}, 1).differences[0].relative, kInfinity);
}

TEST_F(ComparisonTest, NanDiffersFromEverything) {
  EXPECT_EQ(CompareVectors({NAN, 1}, {NAN, 1}, 1e9).beyond, 1);
  EXPECT_EQ(CompareVectors({NAN, 1}, {0, 1}, 1e9).beyond, 1);
  EXPECT_EQ(CompareVectors({0, 1}, {0, NAN}, 1e9).differences[0].relative, kInfinity);
  EXPECT_EQ(CompareVectors({INFINITY, 1}, {-INFINITY, 1}, 1e9).beyond, 1);
  EXPECT_EQ(CompareVectors({INFINITY, 1}, {3, 1}, 1e9).beyond, 1);
}

TEST_F(ComparisonTest, SignsOfZeroAndDtypesMatterAtToleranceZeroOnly) {
  EXPECT_EQ(CompareVectors({0.0, 1}, {-0.0, 1}, 0).beyond, 1);
  EXPECT_EQ(CompareVectors({0.0, 1}, {-0.0, 1}, 1e-300).beyond, 0);
  const std::vector<float> floats = {1, 2};
  const std::vector<double> doubles = {1, 2};
  const Comparison exact = CompareTensors(floats, {2}, doubles, {2}, 0);
  EXPECT_EQ(exact.beyond, 1);
  EXPECT_EQ(exact.differences[0].what, "float32 and float64");
  EXPECT_TRUE(CompareTensors(floats, {2}, doubles, {2}, 1e-9).differences.empty());
}

TEST_F(ComparisonTest, IntegersMustBeEqual) {
  const std::vector<int64_t> a = {100000, 7}, b = {100001, 7};
  EXPECT_EQ(CompareTensors(a, {2}, b, {2}, 0.1).beyond, 1);
  EXPECT_EQ(CompareTensors(a, {2}, a, {2}, 0).beyond, 0);
}

TEST_F(ComparisonTest, ShapesAndMissingTensors) {
  const std::vector<double> four = {1, 2, 3, 4};
  const Comparison shapes = CompareTensors(four, {4}, four, {2, 2}, 1);
  EXPECT_EQ(shapes.beyond, 1);
  EXPECT_EQ(shapes.differences[0].what, "shapes [4] and [2, 2]");
  WriteTensor("b", four, {4}, "u");
  const Comparison missing = CompareNames("a", "b", 1);
  EXPECT_EQ(missing.beyond, 2);
  EXPECT_EQ(missing.tensors, 0);
  EXPECT_EQ(missing.differences[0].where, "t");
  EXPECT_EQ(missing.differences[0].what, "there is no such tensor in " + Path("b"));
  EXPECT_EQ(missing.differences[1].where, "u");
  EXPECT_EQ(missing.differences[1].what, "there is no such tensor in " + Path("a"));
}

TEST_F(ComparisonTest, LargeTensorsAreReadToTheirEnd) {
  std::vector<double> a(10000, 1), b = a;
  b[9999] = 2;
  const Comparison last = CompareVectors(a, b, 0);
  ASSERT_EQ(last.beyond, 1);
  EXPECT_EQ(last.differences[0].what.substr(0, 20), "at [9999] 1 and 2, r");
}

TEST_F(ComparisonTest, DumpsCompareNumbersButNoTimes) {
  WriteStep("a", R"({"kind": "train", "step": 2, "loss": 5.5, "seconds": 1, "extra": 1})");
  WriteStep("b", R"({"kind": "train", "step": 2, "loss": 5.0, "seconds": 2})");
  WriteTensor<double>("a/gradients.safetensors", {1}, {1});
  WriteTensor<double>("b/gradients.safetensors", {2}, {1});
  const Comparison dumps = CompareNames("a", "b", 0.1);
  EXPECT_EQ(dumps.numbers, 2);
  EXPECT_EQ(dumps.beyond, 2);
  ASSERT_EQ(dumps.differences.size(), 3);
  EXPECT_EQ(dumps.differences[0].where, "step.json: extra");
  EXPECT_EQ(dumps.differences[0].what, "there is no such number in " + Path("b"));
  EXPECT_EQ(dumps.differences[1].where, "gradients: t");
  EXPECT_EQ(dumps.differences[2].where, "step.json: loss");
  EXPECT_EQ(dumps.differences[2].what, "5.5 and 5, relative difference 0.1");
  EXPECT_FALSE(dumps.differences[2].beyond);
}

TEST_F(ComparisonTest, AMissingFileOfADumpIsADifference) {
  WriteStep("a", "{}");
  WriteStep("b", "{}");
  WriteTensor<double>("a/gradients.safetensors", {1}, {1});
  WriteTensor<double>("b/gradients.safetensors", {1}, {1});
  EXPECT_EQ(CompareNames("a", "b", 0).beyond, 0);
  WriteTensor<double>("b/tokens.safetensors", {1}, {1});
  const Comparison missing = CompareNames("a", "b", 0);
  EXPECT_EQ(missing.beyond, 1);
  EXPECT_EQ(missing.differences[0].where, "tokens");
}

TEST_F(ComparisonTest, SmallGradientsInFloat32AreMeasuredAgainstAFloor) {
  // A scale of 1e-4 beside a matrix of norm 1: its floor is 1e-2.
  const float one = 1, scale_a = 1.5e-4f, scale_b = 1e-4f;
  const auto write = [&](const std::string& name, const std::string& file, const float* scale) {
    WriteStep(name, "{}");
    const std::vector<NamedArray> arrays = {
        {.name = "m", .dtype = DType::kFloat32, .shape = {1}, .data = &one},
        {.name = "model.layers.1.depth_scale",
         .dtype = DType::kFloat32,
         .shape = {},
         .data = scale}};
    ASSERT_TRUE(WriteSafetensorsFile(files_, Path(name + "/" + file), arrays, {}).ok());
  };
  write("a", "gradients.safetensors", &scale_a);
  write("b", "gradients.safetensors", &scale_b);
  const Comparison gradients = CompareNames("a", "b", 0.01);
  ASSERT_EQ(gradients.differences.size(), 1);
  EXPECT_NEAR(gradients.differences[0].relative, 0.5e-4 / 1e-2, 1e-8);
  EXPECT_EQ(gradients.beyond, 0);
  // Weights have no floor.
  write("c", "weights_after.safetensors", &scale_a);
  write("d", "weights_after.safetensors", &scale_b);
  EXPECT_NEAR(CompareNames("c", "d", 0.01).differences[0].relative, 0.5, 1e-6);
}

TEST_F(ComparisonTest, CheckpointsCompareTheirState) {
  const std::vector<double> weights = {1, 2};
  const auto write = [&](const std::string& run, int64_t skipped) {
    const std::vector<NamedArray> arrays = {
        {.name = "w", .dtype = DType::kFloat64, .shape = {2}, .data = weights.data()}};
    ASSERT_TRUE(WriteCheckpoint(files_, Path(run),
                                {.step = 3,
                                 .consumed_sequences = 24,
                                 .job_text = run,
                                 .weights = arrays,
                                 .optimizer = arrays,
                                 .integers = {{"skipped", skipped}},
                                 .numbers = {{"x", 0.5}}})
                    .ok());
  };
  write("a", 0);
  write("b", 0);
  write("c", 1);
  const Comparison same = CompareNames("a", "b/step_00000003", 0);
  EXPECT_EQ(same.tensors, 2);
  EXPECT_EQ(same.numbers, 4);
  EXPECT_TRUE(same.differences.empty());
  const Comparison other = CompareNames("a", "c", 0);
  ASSERT_EQ(other.differences.size(), 1);
  EXPECT_EQ(other.differences[0].where, "manifest: skipped");
}

TEST_F(ComparisonTest, RefusesWhatCannotBeCompared) {
  WriteStep("dump", "{}");
  WriteTensor<double>("dump/gradients.safetensors", {1}, {1});
  WriteTensor<double>("file", {1}, {1});
  ASSERT_TRUE(files_.CreateDirectories(Path("empty")).ok());
  const auto refusal = [&](const std::string& a, const std::string& b) {
    return Compare(files_, Path(a), Path(b), 0).status();
  };
  EXPECT_EQ(refusal("dump", "file").message(),
            Path("dump") + " is a dump and " + Path("file") +
                " a safetensors file: two of the same kind are needed");
  EXPECT_TRUE(absl::IsNotFound(refusal("file", "missing")));
  EXPECT_TRUE(absl::IsNotFound(refusal("empty", "file")));
  WriteTestFile(Path("torn"), "no tensors");
  EXPECT_TRUE(absl::IsDataLoss(refusal("torn", "file")));
}

}  // namespace
}  // namespace fathom
