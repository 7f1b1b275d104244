#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <random>

#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

class CheckpointTest : public ::testing::Test {
 protected:
  // Arrays that say which step wrote them.
  absl::Status Write(FileSystem& files, int64_t step, float value = 0) {
    const float weights[4] = {float(step), value, -0.0f, 1e-30f};
    const double moments[2] = {0.1 * step, value};
    return WriteCheckpoint(files, output_,
                           {.step = step,
                            .consumed_sequences = 8 * step,
                            .job_text = "name: \"x\"\n\"manifest_checksum\": \"",
                            .weights = {{"w", DType::kFloat32, {2, 2}, weights}},
                            .optimizer = {{"w.first", DType::kFloat64, {2}, moments}},
                            .integers = {{"skipped", -3}},
                            .numbers = {{"scale", 0.1}, {"best", NAN}}});
  }
  // The checkpoint of LATEST holds what Write(step, value) wrote.
  void ExpectLatest(int64_t step, float value = 0) {
    auto latest = ReadLatest(PosixFileSystem(), output_);
    ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
    auto checkpoint = OpenCheckpoint(PosixFileSystem(), **latest);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const Manifest& manifest = *checkpoint->manifest;
    EXPECT_EQ(manifest.step, step);
    EXPECT_EQ(manifest.consumed_sequences, 8 * step);
    EXPECT_EQ(manifest.job_text, "name: \"x\"\n\"manifest_checksum\": \"");
    EXPECT_EQ(manifest.integers.at("skipped"), -3);
    EXPECT_EQ(manifest.numbers.at("scale"), 0.1);
    EXPECT_TRUE(std::isnan(manifest.numbers.at("best")));
    ASSERT_EQ(checkpoint->weights->tensors().size(), 1);
    ASSERT_EQ(checkpoint->optimizer->tensors().size(), 1);
    float weights[4];
    ASSERT_TRUE(checkpoint->weights->Read("w", DType::kFloat32, {2, 2}, weights).ok());
    EXPECT_EQ(weights[0], step);
    EXPECT_EQ(weights[1], value);
    EXPECT_TRUE(std::signbit(weights[2]));
    EXPECT_EQ(weights[3], 1e-30f);
    double moments[2];
    ASSERT_TRUE(checkpoint->optimizer->Read("w.first", DType::kFloat64, {2}, moments).ok());
    EXPECT_EQ(moments[0], 0.1 * step);
    EXPECT_EQ(VerifyCheckpoint(*checkpoint), std::vector<std::string>());
  }
  // Step and value of the checkpoint that LATEST names, which must be whole.
  std::pair<float, float> Latest() {
    auto latest = ReadLatest(PosixFileSystem(), output_);
    EXPECT_TRUE(latest.ok() && latest->has_value()) << latest.status();
    if (!latest.ok() || !latest->has_value()) return {};
    auto checkpoint = OpenCheckpoint(PosixFileSystem(), **latest);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return {};
    float weights[4] = {};
    EXPECT_TRUE(checkpoint->weights->Read("w", DType::kFloat32, {2, 2}, weights).ok());
    return {weights[0], weights[1]};
  }
  std::vector<std::string> Names() { return *PosixFileSystem().List(output_); }
  std::string Path(const std::string& name) { return JoinPath(output_, name); }

  const std::string output_ = JoinPath(NewTestDirectory(), "runs/run");
};

TEST_F(CheckpointTest, RoundTrip) {
  auto none = ReadLatest(PosixFileSystem(), output_);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  ASSERT_TRUE(Write(PosixFileSystem(), 1000).ok());
  ExpectLatest(1000);
  ASSERT_TRUE(Write(PosixFileSystem(), 2000, 5).ok());
  ExpectLatest(2000, 5);
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00001000", "step_00002000"}));
  EXPECT_EQ(*ReadFile(PosixFileSystem(), Path("LATEST")), "step_00002000\n");
}

TEST_F(CheckpointTest, ReplacesTheSameStep) {
  ASSERT_TRUE(Write(PosixFileSystem(), 7, 1).ok());
  ASSERT_TRUE(Write(PosixFileSystem(), 7, 2).ok());
  ExpectLatest(7, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000007"}));
}

TEST_F(CheckpointTest, AFailureAtAnyMomentLeavesAWholeCheckpoint) {
  for (const int64_t next : {2, 1}) {  // a further step, and the same step again
    ASSERT_TRUE(PosixFileSystem().RemoveAll(output_).ok());
    ASSERT_TRUE(Write(PosixFileSystem(), 1, 10).ok());
    FailingFiles counting(-1);
    ASSERT_TRUE(Write(counting, next, 20).ok());
    ASSERT_GT(counting.operations(), 15);
    for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
      ASSERT_TRUE(PosixFileSystem().RemoveAll(output_).ok());
      ASSERT_TRUE(Write(PosixFileSystem(), 1, 10).ok());
      FailingFiles files(fail_at);
      const bool written = Write(files, next, 20).ok();
      const std::pair<float, float> found = Latest();
      const bool old = found == std::pair(1.0f, 10.0f);
      EXPECT_TRUE(old || found == std::pair(float(next), 20.0f)) << fail_at;
      EXPECT_TRUE(old || fail_at >= 10);
      // But for the last clean-up, all failures are errors.
      EXPECT_EQ(written, fail_at + 1 == counting.operations());
      // The next save works and cleans up.
      ASSERT_TRUE(Write(PosixFileSystem(), next, 30).ok()) << fail_at;
      EXPECT_EQ(Latest(), std::pair(float(next), 30.0f));
      EXPECT_EQ(Names().size(), 1 + next) << fail_at;
    }
  }
}

TEST_F(CheckpointTest, EveryDamageIsFound) {
  ASSERT_TRUE(Write(PosixFileSystem(), 1).ok());
  for (const char* name : {"weights_00000.safetensors", "optimizer_00000.safetensors"}) {
    const bool of_weights = name[0] == 'w';
    const std::string path = Path(JoinPath("step_00000001", name));
    const std::string data = *ReadFile(PosixFileSystem(), path);
    const auto expect_error = [&](const std::string& damaged, size_t where) {
      WriteTestFile(path, damaged);
      const auto checkpoint = OpenCheckpoint(PosixFileSystem(), Path("step_00000001"));
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const std::vector<std::string> problems = VerifyCheckpoint(*checkpoint);
      ASSERT_EQ(problems.size(), 1) << name << " " << where;
      EXPECT_NE(problems[0].find(path), std::string::npos) << problems[0];
      EXPECT_NE(problems[0].find(of_weights ? "w" : "w.first"), std::string::npos) << problems[0];
      char values[16];
      const absl::Status status =
          of_weights ? checkpoint->weights->Read("w", DType::kFloat32, {2, 2}, values)
                     : checkpoint->optimizer->Read("w.first", DType::kFloat64, {2}, values);
      EXPECT_TRUE(absl::IsDataLoss(status)) << name << " " << where << status;
    };
    for (size_t size = 0; size < data.size(); ++size) expect_error(data.substr(0, size), size);
    for (size_t byte = 0; byte < data.size(); ++byte) {
      std::string damaged = data;
      damaged[byte] ^= 1 << byte % 8;
      expect_error(damaged, byte);
    }
    WriteTestFile(path, data);
  }
  ExpectLatest(1);
}

TEST_F(CheckpointTest, MissingPiecesAreErrors) {
  EXPECT_TRUE(absl::IsNotFound(OpenCheckpoint(PosixFileSystem(), Path("nowhere")).status()));
  ASSERT_TRUE(Write(PosixFileSystem(), 1).ok());
  const std::string shard = Path("step_00000001/optimizer_00000.safetensors");
  ASSERT_TRUE(PosixFileSystem().RemoveAll(shard).ok());
  const auto checkpoint = OpenCheckpoint(PosixFileSystem(), Path("step_00000001"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  double moments[2];
  const absl::Status status = checkpoint->optimizer->Read("w.first", DType::kFloat64, {2}, moments);
  EXPECT_NE(status.message().find(shard), std::string::npos) << status;
  EXPECT_NE(status.message().find("w.first"), std::string::npos) << status;
  EXPECT_EQ(VerifyCheckpoint(*checkpoint).size(), 1);
  ASSERT_TRUE(PosixFileSystem().RemoveAll(Path("step_00000001")).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadLatest(PosixFileSystem(), output_).status()));
  for (const char* latest : {"", "\n", "../other", "step_1", "step_0000000a", "step_00000001 "}) {
    WriteTestFile(Path("LATEST"), latest);
    EXPECT_TRUE(absl::IsDataLoss(ReadLatest(PosixFileSystem(), output_).status())) << latest;
  }
}

// Its manifests began like this.
TEST_F(CheckpointTest, TheFirstVersionIsRefused) {
  ASSERT_TRUE(PosixFileSystem().CreateDirectories(output_).ok());
  WriteTestFile(Path("manifest.json"),
                R"({"format": "fathom-checkpoint", "version": 1, "step": 3, "files": []})");
  const absl::Status status = OpenCheckpoint(PosixFileSystem(), output_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("version 1"), std::string::npos);
  EXPECT_NE(status.message().find("version 2"), std::string::npos);
}

// A checkpoint of several blocks, whose values depend on `seed`.
class LargeCheckpointTest : public CheckpointTest {
 protected:
  void WriteLarge(int64_t step, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<NamedArray> weights, optimizer;
    std::deque<std::vector<float>> storage;
    for (const int64_t size : {100000, 7, 400000, 300000, 1}) {
      std::vector<float>& values = storage.emplace_back(size);
      for (float& value : values) value = static_cast<float>(random());
      const std::string name = absl::StrCat("w", storage.size());
      weights.push_back({name, DType::kFloat32, {size}, values.data()});
      optimizer.push_back({name + ".first", DType::kFloat32, {size}, values.data()});
    }
    ASSERT_TRUE(WriteCheckpoint(PosixFileSystem(), output_,
                                {.step = step,
                                 .consumed_sequences = 0,
                                 .job_text = "",
                                 .weights = weights,
                                 .optimizer = optimizer,
                                 .integers = {},
                                 .numbers = {}})
                    .ok());
  }

  // What Read says of each tensor of an opened checkpoint, by its name.
  std::map<std::string, absl::Status> ReadAll(const Checkpoint& checkpoint) {
    std::map<std::string, absl::Status> statuses;
    for (const TensorSource* source : {checkpoint.weights.get(), checkpoint.optimizer.get()}) {
      for (const NamedArray& tensor : source->tensors()) {
        std::vector<char> data(tensor.bytes());
        statuses[tensor.name] = source->Read(tensor.name, tensor.dtype, tensor.shape, data.data());
      }
    }
    return statuses;
  }

  static void Flip(const std::string& path, int64_t byte, int change) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const int value = file.get() ^ change;
    file.seekp(byte);
    file.put(static_cast<char>(value));
  }

  // A shard of the manifest was changed at `byte`: what is in that block, and nothing else, is
  // lost.
  void ExpectDamage(const std::string& directory, size_t file, int64_t byte) {
    const auto checkpoint = OpenCheckpoint(PosixFileSystem(), directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const Manifest& manifest = *checkpoint->manifest;
    const std::string path = JoinPath(directory, manifest.files[file].name);
    const std::vector<std::string> problems = VerifyCheckpoint(*checkpoint);
    ASSERT_EQ(problems.size(), 1);
    EXPECT_NE(problems[0].find(path), std::string::npos) << problems[0];
    const auto fresh = OpenCheckpoint(PosixFileSystem(), directory);
    const std::map<std::string, absl::Status> statuses = ReadAll(*fresh);
    int64_t lost = 0;
    for (const ManifestTensor& tensor : manifest.tensors) {
      const ManifestSlice& slice = tensor.slices.at(0);
      const int64_t last = slice.offset + tensor.shape.elements() * SizeOf(tensor.dtype) - 1;
      const bool touched = slice.file == static_cast<int>(file) &&
                           slice.offset / kBlockBytes <= byte / kBlockBytes &&
                           byte / kBlockBytes <= last / kBlockBytes;
      const absl::Status& status = statuses.at(tensor.name);
      EXPECT_EQ(!status.ok(), touched) << tensor.name << ": " << status;
      lost += touched;
      if (!touched) continue;
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_NE(status.message().find(path), std::string::npos) << status;
      EXPECT_NE(status.message().find(tensor.name), std::string::npos) << status;
    }
    EXPECT_GT(lost, 0);
    const bool named = std::any_of(statuses.begin(), statuses.end(), [&](const auto& entry) {
      return !entry.second.ok() && problems[0].find(entry.first) != std::string::npos;
    });
    EXPECT_TRUE(named) << problems[0];
  }
};

TEST_F(LargeCheckpointTest, AThousandChangedBytes) {
  WriteLarge(1, 1);
  const std::string directory = Path("step_00000001");
  const auto whole = OpenCheckpoint(PosixFileSystem(), directory);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(VerifyCheckpoint(*whole), std::vector<std::string>());
  const std::vector<ManifestFile> shards = whole->manifest->files;
  ASSERT_EQ(shards.size(), 2);
  ASSERT_GE(shards[0].blocks.size(), 4);
  const std::string manifest = JoinPath(directory, kManifestFile);
  const int64_t manifest_size = (*PosixFileSystem().OpenForRead(manifest))->size();
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const size_t file = random() % 3;
    const std::string path = file < 2 ? JoinPath(directory, shards[file].name) : manifest;
    const int64_t byte = random() % (file < 2 ? shards[file].size : manifest_size);
    const int change = 1 + static_cast<int>(random() % 255);
    SCOPED_TRACE(absl::StrCat(path, ", byte ", byte, ", change ", change));
    Flip(path, byte, change);
    if (file < 2) {
      ExpectDamage(directory, file, byte);
    } else {
      const absl::Status status = OpenCheckpoint(PosixFileSystem(), directory).status();
      EXPECT_FALSE(status.ok());
      EXPECT_NE(status.message().find(path), std::string::npos) << status;
    }
    Flip(path, byte, change);
  }
  EXPECT_EQ(VerifyCheckpoint(*OpenCheckpoint(PosixFileSystem(), directory)),
            std::vector<std::string>());
}

TEST_F(LargeCheckpointTest, FilesOfAnotherCheckpointAreFound) {
  WriteLarge(1, 1);
  WriteLarge(2, 2);
  for (const std::string name :
       {"weights_00000.safetensors", "optimizer_00000.safetensors", "manifest.json"}) {
    const std::string path = Path("step_00000001/" + name);
    const std::string own = *ReadFile(PosixFileSystem(), path);
    WriteTestFile(path, *ReadFile(PosixFileSystem(), Path("step_00000002/" + name)));
    const auto checkpoint = OpenCheckpoint(PosixFileSystem(), Path("step_00000001"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_GT(VerifyCheckpoint(*checkpoint).size(), 3) << name;
    for (const auto& [tensor, status] : ReadAll(*checkpoint)) {
      const bool of_weights = tensor.find(".first") == std::string::npos;
      const bool lost = name[0] == 'm' || of_weights == (name[0] == 'w');
      EXPECT_EQ(absl::IsDataLoss(status), lost) << name << ", " << tensor << ": " << status;
    }
    WriteTestFile(path, own);
  }
}

// Only what is asked for is read: the other end of a damaged tensor loads.
TEST_F(LargeCheckpointTest, SlicesReadTheirBlocksAlone) {
  WriteLarge(1, 1);
  const std::string directory = Path("step_00000001");
  const int64_t last = 400000 - 1;
  const auto whole = OpenCheckpoint(PosixFileSystem(), directory);
  ASSERT_TRUE(whole.ok());
  const NamedArray* tensor = whole->weights->Find("w3");
  ASSERT_NE(tensor, nullptr);
  float value = 0;
  ASSERT_TRUE(whole->weights->ReadSlice(*tensor, {{}, {last, last + 1}}, &value).ok());
  Flip(JoinPath(directory, "weights_00000.safetensors"),
       whole->manifest->tensors[2].slices[0].offset + 4 * last, 1);
  const auto damaged = OpenCheckpoint(PosixFileSystem(), directory);
  ASSERT_TRUE(damaged.ok());
  tensor = damaged->weights->Find("w3");
  EXPECT_TRUE(damaged->weights->ReadSlice(*tensor, {{}, {0, 1}}, &value).ok());
  EXPECT_FALSE(damaged->weights->ReadSlice(*tensor, {{}, {last, last + 1}}, &value).ok());
}

TEST_F(CheckpointTest, Retention) {
  for (int64_t step = 10; step <= 100; step += 10) {
    ASSERT_TRUE(Write(PosixFileSystem(), step).ok());
  }
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, {}).ok());
  EXPECT_EQ(Names().size(), 11);
  CheckpointConfig config;
  config.keep = 2;
  config.keep_every = 40;
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, config).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000040", "step_00000080",
                                               "step_00000090", "step_00000100"}));
  // After a resume from an old one, LATEST is not the newest.
  WriteTestFile(Path("LATEST"), "step_00000040\n");
  config.keep = 1;
  config.keep_every = 0;
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, config).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000040", "step_00000100"}));
}

}  // namespace
}  // namespace fathom
