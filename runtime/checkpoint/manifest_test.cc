#include "runtime/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nlohmann/json.hpp"

namespace fathom {
namespace {

// A matrix [4, 6] whose columns two ranks hold, the second one's in two ranges, and a scalar.
Manifest MakeManifest() {
  const ManifestFile first{"weights_00000.safetensors", 300, {7}};
  const ManifestFile second{"weights_00001.safetensors", kBlockBytes + 1, {0xffffffffffffffff, 0}};
  return {.step = 12,
          .consumed_sequences = 96,
          .job_text = "name: \"x\"\n\"manifest_checksum\": \"",
          .mesh = {.pipeline = 1, .data = 1, .context = 1, .tensor = 2},
          .files = {first, second},
          .tensors = {{.name = "m",
                       .kind = TensorKind::kWeight,
                       .dtype = DType::kFloat32,
                       .shape = {4, 6},
                       .slices = {{0, 100, {{1, 0, 3}, {0, 12}}},
                                  {1, 100, {{1, 3, 6}, {0, 5}}},
                                  {1, 200, {{1, 3, 6}, {5, 12}}}}},
                      {.name = "s",
                       .kind = TensorKind::kOptimizer,
                       .dtype = DType::kFloat64,
                       .shape = {},
                       .slices = {{0, 292, {{}, {0, 1}}}}}},
          .integers = {{"skipped", -3}},
          .numbers = {{"best", NAN}, {"scale", 0.1}}};
}

void ExpectEqualTensors(const Manifest& a, const Manifest& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const ManifestTensor &x = a.tensors[i], &y = b.tensors[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.dtype, y.dtype);
    EXPECT_EQ(x.shape, y.shape);
    ASSERT_EQ(x.slices.size(), y.slices.size());
    for (size_t j = 0; j < x.slices.size(); ++j) {
      EXPECT_EQ(x.slices[j].file, y.slices[j].file);
      EXPECT_EQ(x.slices[j].offset, y.slices[j].offset);
      EXPECT_EQ(x.slices[j].slice.part.dim, y.slices[j].slice.part.dim);
      EXPECT_EQ(x.slices[j].slice.part.begin, y.slices[j].slice.part.begin);
      EXPECT_EQ(x.slices[j].slice.part.end, y.slices[j].slice.part.end);
      EXPECT_EQ(x.slices[j].slice.range, y.slices[j].slice.range);
    }
  }
}

TEST(ManifestTest, RoundTrip) {
  const Manifest manifest = MakeManifest();
  const std::string text = FormatManifest(manifest);
  const auto read = ParseManifest("path", text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 12);
  EXPECT_EQ(read->consumed_sequences, 96);
  EXPECT_EQ(read->job_text, manifest.job_text);
  EXPECT_EQ(read->mesh, manifest.mesh);
  EXPECT_EQ(read->integers, manifest.integers);
  EXPECT_EQ(read->numbers.at("scale"), 0.1);
  EXPECT_TRUE(std::isnan(read->numbers.at("best")));
  ASSERT_EQ(read->files.size(), 2);
  EXPECT_EQ(read->files[1].name, "weights_00001.safetensors");
  EXPECT_EQ(read->files[1].size, kBlockBytes + 1);
  EXPECT_EQ(read->files[1].blocks, manifest.files[1].blocks);
  ExpectEqualTensors(*read, manifest);
  EXPECT_EQ(FormatManifest(*read), text);
  // Other programs read it as plain JSON.
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["format"], "fathom-checkpoint");
  EXPECT_EQ(json["version"], 2);
  EXPECT_EQ(json["tensors"][0]["slices"][1]["box"]["dim"], 1);
  EXPECT_EQ(json["tensors"][0]["slices"][1]["range"]["end"], "5");
  EXPECT_FALSE(json["tensors"][1]["slices"][0].contains("box"));
}

TEST(ManifestTest, EveryChangedByteIsFound) {
  const std::string text = FormatManifest(MakeManifest());
  for (size_t byte = 0; byte < text.size(); ++byte) {
    std::string damaged = text;
    damaged[byte] ^= 1 << byte % 8;
    const absl::Status status = ParseManifest("path", damaged).status();
    ASSERT_FALSE(status.ok()) << byte;
    EXPECT_EQ(status.message().substr(0, 4), "path");
  }
  for (size_t size = 0; size < text.size(); size += 7) {
    EXPECT_FALSE(ParseManifest("path", text.substr(0, size)).ok()) << size;
  }
}

TEST(ManifestTest, OtherVersionsAreNamedBesideOurs) {
  const std::string text = FormatManifest(MakeManifest());
  const size_t at = text.find("\"version\": 2");
  ASSERT_NE(at, std::string::npos);
  for (const char version : {'1', '3'}) {
    std::string other = text;
    other[at + 11] = version;
    const absl::Status status = ParseManifest("path", other).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(status.message(), absl::StrCat("path has version ", std::string(1, version),
                                             " of the checkpoint format, and this program reads "
                                             "version 2"));
  }
  // Also where it has fields of its own.
  EXPECT_TRUE(absl::IsFailedPrecondition(
      ParseManifest("path", R"({"format": "fathom-checkpoint", "version": 9, "new": [1]})")
          .status()));
}

TEST(ManifestTest, SlicesThatMakeNoSenseAreRefused) {
  const auto refused = [](const std::function<void(Manifest&)>& spoil) {
    Manifest manifest = MakeManifest();
    spoil(manifest);
    return absl::IsDataLoss(ParseManifest("path", FormatManifest(manifest)).status());
  };
  EXPECT_FALSE(refused([](Manifest&) {}));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices.pop_back(); }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices[0].file = 2; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices[0].offset = 253; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices[0].offset = -1; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices[0].slice.part.end = 7; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.tensors[0].slices[0].slice.range.end = 13; }));
  EXPECT_TRUE(refused([](Manifest& m) { m.files[1].blocks.pop_back(); }));
}

TEST(ManifestTest, PartsOfRanksMakeTheWhole) {
  const Manifest whole = MakeManifest();
  Manifest first, second, merged;
  first.files = {whole.files[0]};
  first.tensors = {whole.tensors[0], whole.tensors[1]};
  first.tensors[0].slices.resize(1);
  second.files = {whole.files[1]};
  second.tensors = {whole.tensors[0]};
  second.tensors[0].slices.erase(second.tensors[0].slices.begin());
  for (ManifestSlice& slice : second.tensors[0].slices) slice.file = 0;
  ASSERT_TRUE(AddPart(PackPart(first), &merged).ok());
  ASSERT_TRUE(AddPart(PackPart(Manifest()), &merged).ok());
  ASSERT_TRUE(AddPart(PackPart(second), &merged).ok());
  ASSERT_EQ(merged.files.size(), 2);
  EXPECT_EQ(merged.files[1].blocks, whole.files[1].blocks);
  ExpectEqualTensors(merged, whole);
  EXPECT_TRUE(absl::IsDataLoss(AddPart("\xff\xff", &merged)));
}

}  // namespace
}  // namespace fathom
