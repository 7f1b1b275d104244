#include "runtime/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::Status WriteAll(FileSystem& files) {
    return WriteSafetensorsFile(files, path_,
                                {{"b.weight", DType::kFloat32, {2, 3}, floats_},
                                 {"a", DType::kBFloat16, {1}, halves_},
                                 {"scalar", DType::kFloat64, {}, doubles_},
                                 {"empty", DType::kFloat32, {0, 4}, nullptr},
                                 {"ids", DType::kInt64, {1, 2}, longs_},
                                 {"small \"ids\"", DType::kInt32, {3}, ints_}},
                                {{"format", "pt"}, {"note", "x\ny"}});
  }
  // A file with this header and `data_size` bytes of data.
  absl::Status OpenWith(const std::string& header, size_t data_size) {
    const uint64_t length = header.size();
    std::string text(reinterpret_cast<const char*>(&length), 8);
    WriteTestFile(path_, text + header + std::string(data_size, 'x'));
    return SafetensorsFile::Open(PosixFileSystem(), path_).status();
  }

  const std::string path_ = JoinPath(NewTestDirectory(), "x.safetensors");
  const float floats_[6] = {1, 2, 3, 4, 5, 6.5f};
  const uint16_t halves_[1] = {0x3f80};
  const double doubles_[1] = {0.1};
  const int64_t longs_[2] = {-1, int64_t{1} << 40};
  const int32_t ints_[3] = {1, 2, -3};
};

TEST_F(SafetensorsTest, RoundTrip) {
  ASSERT_TRUE(WriteAll(PosixFileSystem()).ok());
  auto file = SafetensorsFile::Open(PosixFileSystem(), path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->metadata(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x\ny"}}));
  ASSERT_EQ((*file)->tensors().size(), 6);
  EXPECT_EQ((*file)->tensors()[0].name, "b.weight");
  EXPECT_EQ((*file)->tensors()[1].name, "a");
  float floats[6];
  ASSERT_TRUE((*file)->Read("b.weight", DType::kFloat32, {2, 3}, floats).ok());
  EXPECT_EQ(std::memcmp(floats, floats_, sizeof(floats)), 0);
  uint16_t halves[1];
  ASSERT_TRUE((*file)->Read("a", DType::kBFloat16, {1}, halves).ok());
  EXPECT_EQ(halves[0], halves_[0]);
  double doubles[1];
  ASSERT_TRUE((*file)->Read("scalar", DType::kFloat64, {}, doubles).ok());
  EXPECT_EQ(doubles[0], 0.1);
  int64_t longs[2];
  ASSERT_TRUE((*file)->Read("ids", DType::kInt64, {1, 2}, longs).ok());
  EXPECT_EQ(longs[1], longs_[1]);
  int32_t ints[3];
  ASSERT_TRUE((*file)->Read("small \"ids\"", DType::kInt32, {3}, ints).ok());
  EXPECT_EQ(ints[2], -3);
  EXPECT_TRUE((*file)->Read("empty", DType::kFloat32, {0, 4}, nullptr).ok());
  EXPECT_EQ((*file)->Find("c"), nullptr);
}

TEST_F(SafetensorsTest, BytesAreThoseOfTheFormat) {
  const int32_t value = 7;
  ASSERT_TRUE(WriteSafetensorsFile(PosixFileSystem(), path_, {{"t", DType::kInt32, {1}, &value}},
                                   {{"k", "v"}})
                  .ok());
  const std::string header =
      R"({"__metadata__":{"k":"v"},"t":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})";
  std::string expected(8, '\0');
  expected[0] = (header.size() + 7) / 8 * 8;
  expected += header + std::string(expected[0] - header.size(), ' ');
  expected += std::string("\x07\0\0\0", 4);
  EXPECT_EQ(*ReadFile(PosixFileSystem(), path_), expected);
}

TEST_F(SafetensorsTest, ReadNamesWhatDoesNotFit) {
  ASSERT_TRUE(WriteAll(PosixFileSystem()).ok());
  auto file = SafetensorsFile::Open(PosixFileSystem(), path_);
  float out[6];
  EXPECT_TRUE(absl::IsNotFound((*file)->Read("c", DType::kFloat32, {2, 3}, out)));
  const absl::Status shape = (*file)->Read("b.weight", DType::kFloat32, {3, 2}, out);
  EXPECT_NE(shape.ToString().find("b.weight is float32 [2, 3] where float32 [3, 2] is needed"),
            std::string::npos)
      << shape;
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->Read("b.weight", DType::kInt32, {2, 3}, out)));
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  ASSERT_TRUE(WriteAll(PosixFileSystem()).ok());
  const std::string data = *ReadFile(PosixFileSystem(), path_);
  for (size_t size = 0; size < data.size(); ++size) {
    WriteTestFile(path_, data.substr(0, size));
    EXPECT_FALSE(SafetensorsFile::Open(PosixFileSystem(), path_).ok()) << size;
  }
  WriteTestFile(path_, data + "x");
  EXPECT_FALSE(SafetensorsFile::Open(PosixFileSystem(), path_).ok());
}

TEST_F(SafetensorsTest, NoFlippedBitOfTheHeaderReadsOutside) {
  ASSERT_TRUE(WriteAll(PosixFileSystem()).ok());
  const std::string data = *ReadFile(PosixFileSystem(), path_);
  int64_t errors = 0;
  for (size_t bit = 0; bit < 8 * 600; bit += 7) {
    std::string damaged = data;
    damaged[bit / 8 % data.size()] ^= 1 << bit % 8;
    WriteTestFile(path_, damaged);
    auto file = SafetensorsFile::Open(PosixFileSystem(), path_);
    errors += !file.ok();
    if (!file.ok()) continue;
    int64_t bytes = 0;  // a changed name or metadata may be valid: then the data is still covered
    for (const NamedArray& tensor : (*file)->tensors()) bytes += tensor.bytes();
    EXPECT_EQ(bytes, 24 + 2 + 8 + 16 + 12);
  }
  EXPECT_GT(errors, 100);
}

TEST_F(SafetensorsTest, BadHeadersAreErrors) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const std::string good = tensor("F32", "[2]", "[0,8]");
  EXPECT_TRUE(OpenWith("{\"t\":" + good + "}", 8).ok());
  EXPECT_TRUE(OpenWith("{}", 0).ok());
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"t\":" + good + "}", "8 bytes at the end belong to no tensor"},
      {"{\"t\":" + tensor("F32", "[2]", "[0,16]") + "}", "tensor t has 16 bytes"},
      {"{\"t\":" + tensor("F32", "[4]", "[8,24]") + "}", "tensor t lies at bytes 8 to 24 of 16"},
      {"{\"t\":" + tensor("F32", "[2]", "[8,0]") + "}", "tensor t lies at"},
      {"{\"t\":" + tensor("F32", "[2]", "[8,16]") + "}", "leaves a hole"},
      {"{\"t\":" + good + ",\"u\":" + good + "}", "overlaps"},
      {"{\"t\":" + tensor("F32", "[-2]", "[0,8]") + "}", "dim that is not a number"},
      {"{\"t\":" + tensor("F32", "[1.5]", "[0,8]") + "}", "dim that is not a number"},
      {"{\"t\":" + tensor("F32", "[18446744073709551615,2]", "[0,8]") + "}", "dim of"},
      {"{\"t\":" + tensor("F32", "[9,9,9,9]", "[0,8]") + "}", "larger than the file"},
      {"{\"t\":" + tensor("F32", "[2,1,1,1,1]", "[0,8]") + "}", "5 dims"},
      {"{\"t\":" + tensor("F16", "[8]", "[0,16]") + "}", "dtype F16"},
      {"{\"t\":" + tensor("F32", "2", "[0,8]") + "}", "lacks"},
      {"{\"t\":" + tensor("F32", "[2]", "[0]") + "}", "not two offsets"},
      {"{\"t\":" + tensor("F32", "[2]", "[\"0\",8]") + "}", "not two offsets"},
      {"{\"t\":7}", "lacks"},
      {"{\"__metadata__\":7}", "__metadata__"},
      {"{\"__metadata__\":{\"a\":1}}", "__metadata__.a"},
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {"", "not a JSON object"},
  };
  for (const auto& [header, message] : cases) {
    const absl::Status status = OpenWith(header, 16);
    EXPECT_FALSE(status.ok()) << header;
    EXPECT_NE(status.ToString().find(message), std::string::npos) << header << "\n" << status;
    EXPECT_NE(status.ToString().find(path_), std::string::npos) << status;
  }
}

TEST_F(SafetensorsTest, FailedWritesLeaveNothingUnderTheName) {
  FailingFiles counting(-1);
  ASSERT_TRUE(WriteAll(counting).ok());
  ASSERT_GT(counting.operations(), 10);
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    ASSERT_TRUE(PosixFileSystem().RemoveAll(path_).ok());
    FailingFiles files(fail_at);
    EXPECT_FALSE(WriteAll(files).ok()) << fail_at;
    EXPECT_FALSE(PosixFileSystem().Exists(path_)) << fail_at;
  }
}

}  // namespace
}  // namespace fathom
