#include "runtime/checkpoint_saver.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include "core/cpu_device.h"
#include "parallel/in_process_communicator.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/testing/crashing_files.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/faulty_files.h"

namespace fathom {
namespace {

constexpr char kOutput[] = "/runs/run";

// A logical tensor whose elements say which tensor, element and save they are of.
struct Logical {
  std::string name;
  TensorKind kind;
  Shape shape;
  int dim;  // that ranks share; -1: ranges of the flattened tensor
};
const std::vector<Logical>& Tensors() {
  static const auto& tensors = *new std::vector<Logical>{
      {"rows", TensorKind::kWeight, {12, 5}, 0},
      {"columns", TensorKind::kWeight, {7, 24}, 1},
      {"flat", TensorKind::kWeight, {3, 7}, -1},
      {"large", TensorKind::kWeight, {150001}, -1},
      {"columns.momentum", TensorKind::kOptimizer, {7, 24}, 1},
      {"flat.first", TensorKind::kOptimizer, {3, 7}, -1},
  };
  return tensors;
}
double ValueOf(size_t tensor, int64_t element, int64_t save) {
  return static_cast<double>(save) + static_cast<double>(tensor) / 8 +
         static_cast<double>(element) * 1e-7;
}

// One rank with its part of all tensors.
class SavingRank {
 public:
  SavingRank(RankGroups& groups, FileSystem& files, const Job& job, std::vector<std::string>* log)
      : groups_(groups),
        device_(1),
        stream_(device_.NewStream()),
        saver_(files, job, groups, *stream_, [log, &groups](const std::string& line) {
          if (groups.first()) log->push_back(line);
        }) {}

  CheckpointSaver& saver() { return saver_; }

  // Save number `save`; values are overwritten once Save has returned.
  absl::Status Save(int64_t step, int64_t save, bool background) {
    SaveRequest request{.step = step,
                        .consumed_sequences = 8 * step,
                        .weights = {},
                        .optimizer = {},
                        .integers = {{"save", save}}};
    std::deque<std::vector<double>> storage;
    for (size_t i = 0; i < Tensors().size(); ++i) {
      const Logical& tensor = Tensors()[i];
      TensorPiece piece = PieceOf(tensor);
      std::vector<double>& values = storage.emplace_back(piece.range.size());
      for (const SliceRun& run : RunsOf(tensor.shape, {piece.part, piece.range})) {
        for (int64_t j = 0; j < run.count; ++j) {
          values[run.in_slice + j] = ValueOf(i, run.in_tensor + j, save);
        }
      }
      piece.data = Tensor(values.data(), DType::kFloat64, {piece.range.size()});
      (tensor.kind == TensorKind::kWeight ? request.weights : request.optimizer).push_back(piece);
    }
    const absl::Status status = saver_.Save(request, background);
    for (std::vector<double>& values : storage) std::fill(values.begin(), values.end(), -1);
    return status;
  }

 private:
  TensorPiece PieceOf(const Logical& tensor) const {
    const int ranks = groups_.world().size(), rank = groups_.rank();
    TensorPiece piece{.name = tensor.name,
                      .whole = tensor.shape,
                      .part = {},
                      .range = FlatShard(tensor.shape.elements(), ranks, rank),
                      .data = {}};
    if (tensor.dim >= 0) {
      const ElementRange share = FlatShard(tensor.shape[tensor.dim], ranks, rank);
      piece.part = {tensor.dim, share.begin, share.end};
      piece.range = {0, piece.part.ShapeOf(tensor.shape).elements()};
    }
    return piece;
  }

  RankGroups& groups_;
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  CheckpointSaver saver_;
};

using Body = std::function<absl::Status(SavingRank&)>;

class CheckpointSaverTest : public ::testing::Test {
 protected:
  // Calls `body` for every rank; what they log is in log_.
  void RunRanks(int ranks, FileSystem& files, const Body& body, int64_t keep = 0) {
    const auto job = ParseJob(
        absl::StrCat("model { d: 8 heads: 6 kv_heads: 3 head_dim: 2 ffn: 12 vocabulary: 257 plan { "
                     "dense {} } } data { text: 'text' } train { steps: 1 sequence_length: 16 "
                     "output: '",
                     output_, "' } checkpoint { keep: ", keep, " }"),
        "job", {});
    ASSERT_TRUE(job.ok()) << job.status();
    auto world = NewInProcessWorld(ranks);
    std::mutex mutex;
    const auto run = [&](Communicator& communicator) {
      auto groups = RankGroups::Create(communicator, {.data = ranks});
      ASSERT_TRUE(groups.ok()) << groups.status();
      std::vector<std::string> log;
      SavingRank rank(**groups, files, *job, &log);
      const absl::Status status = body(rank);
      if (!status.ok()) communicator.Abort(status);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(status.ok()) << status;
      log_.insert(log_.end(), log.begin(), log.end());
    };
    std::vector<std::thread> threads;
    for (const auto& rank : world) threads.emplace_back(run, std::ref(*rank));
    for (std::thread& thread : threads) thread.join();
  }

  // A save, waited for; whether it worked, which all ranks must agree on.
  bool SaveOnce(int ranks, FileSystem& files, int64_t step, int64_t save, bool background,
                int64_t keep = 0) {
    std::mutex mutex;
    std::set<bool> worked;
    RunRanks(
        ranks, files,
        [&](SavingRank& rank) -> absl::Status {
          FATHOM_RETURN_IF_ERROR(rank.Save(step, save, background));
          while (rank.saver().in_flight()) FATHOM_RETURN_IF_ERROR(rank.saver().Poll());
          const auto failure = rank.saver().TakeFailure();
          const std::lock_guard lock(mutex);
          worked.insert(!failure.has_value());
          if (failure.has_value() && !absl::IsAborted(failure->status)) {
            cause_ = std::string(failure->status.message());
          }
          EXPECT_EQ(rank.saver().saved_step(), failure.has_value() ? -1 : step);
          return absl::OkStatus();
        },
        keep);
    EXPECT_EQ(worked.size(), 1);
    return *worked.begin();
  }

  // The number of the save that LATEST names, which must be whole and right in every element; 0:
  // there is no checkpoint.
  int64_t Latest(FileSystem& files) {
    const auto latest = ReadLatest(files, output_);
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok() || !latest->has_value()) return 0;
    const auto checkpoint = OpenCheckpoint(files, **latest);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return -1;
    EXPECT_EQ(VerifyCheckpoint(*checkpoint), std::vector<std::string>());
    const int64_t save = checkpoint->manifest->integers.at("save");
    for (size_t i = 0; i < Tensors().size(); ++i) {
      const Logical& tensor = Tensors()[i];
      const TensorSource& source =
          tensor.kind == TensorKind::kWeight ? *checkpoint->weights : *checkpoint->optimizer;
      std::vector<double> values(tensor.shape.elements());
      const absl::Status read =
          source.Read(tensor.name, DType::kFloat64, tensor.shape, values.data());
      EXPECT_TRUE(read.ok()) << read;
      int64_t wrong = 0;
      for (size_t j = 0; j < values.size(); ++j) wrong += values[j] != ValueOf(i, j, save);
      EXPECT_EQ(wrong, 0) << tensor.name;
    }
    return save;
  }

  std::string output_ = kOutput;
  std::vector<std::string> log_;
  std::string cause_;  // of the last save that failed
};

TEST_F(CheckpointSaverTest, RanksWriteTheirPartsOfOneCheckpoint) {
  for (const int ranks : {1, 2, 3}) {
    CrashingFiles files;
    for (const bool background : {false, true}) {
      ASSERT_TRUE(SaveOnce(ranks, files, 5, 7 + background, background));
      EXPECT_EQ(Latest(files), 7 + background);
      const auto names = files.List("/runs/run/step_00000005");
      ASSERT_TRUE(names.ok());
      EXPECT_EQ(names->size(), 2 * ranks + 1);
      EXPECT_EQ(*files.List(output_), (std::vector<std::string>{"LATEST", "step_00000005"}));
    }
  }
}

// In the background the same bytes are written, the manifest's too.
TEST_F(CheckpointSaverTest, BackgroundSavesAreTheSameBytes) {
  CrashingFiles at_once, later;
  ASSERT_TRUE(SaveOnce(2, at_once, 5, 1, /*background=*/false));
  ASSERT_TRUE(SaveOnce(2, later, 5, 1, /*background=*/true));
  const std::string directory = "/runs/run/step_00000005";
  const std::vector<std::string> names = *at_once.List(directory);
  ASSERT_EQ(names, *later.List(directory));
  for (const std::string& name : names) {
    EXPECT_TRUE(*ReadFile(at_once, JoinPath(directory, name)) ==
                *ReadFile(later, JoinPath(directory, name)))
        << name;
  }
}

// Wherever the machine stops in a save, and whatever is lost of what was not synced: LATEST names a
// whole checkpoint, the new one if the save was done; and the next save works.
TEST_F(CheckpointSaverTest, ACrashLeavesAWholeCheckpoint) {
  using Lost = CrashingFiles::Lost;
  int64_t points = 0, kept_old = 0;
  // A first checkpoint, a further one, which drops an older one, and the same step again.
  for (const int64_t step : {1, 2, 3}) {
    const int64_t saves_before = step - 1;
    const int64_t saved_step = step == 3 ? 2 : step;
    const auto prepare = [&](CrashingFiles& files) {
      for (int64_t save = 1; save <= saves_before; ++save) {
        ASSERT_TRUE(SaveOnce(1, files, save, save, /*background=*/false));
      }
    };
    CrashingFiles counting;
    prepare(counting);
    const int64_t before = counting.changes();
    ASSERT_TRUE(SaveOnce(1, counting, saved_step, 10, false, /*keep=*/1));
    const int64_t changes = counting.changes() - before;
    ASSERT_GT(changes, 15);
    for (int64_t stop = 0; stop <= changes; ++stop) {
      CrashingFiles files;
      prepare(files);
      files.StopAfter(stop);
      const bool done = SaveOnce(1, files, saved_step, 10, /*background=*/stop % 2 == 1, 1);
      EXPECT_TRUE(done || stop < changes);
      for (const Lost lost : {Lost::kAll, Lost::kNothing, Lost::kByChance, Lost::kByChance}) {
        SCOPED_TRACE(absl::StrCat("step ", step, ", stop ", stop, ", lost ", static_cast<int>(lost),
                                  ", point ", points));
        const auto after = files.AfterCrash(lost, static_cast<uint32_t>(points++));
        const int64_t latest = Latest(*after);
        if (done) {
          EXPECT_EQ(latest, 10);
        } else {
          EXPECT_TRUE(latest == 10 || latest == saves_before) << latest;
        }
        kept_old += latest == saves_before;
        ASSERT_TRUE(SaveOnce(1, *after, 9, 11, /*background=*/false, 1));
        EXPECT_EQ(Latest(*after->AfterCrash(Lost::kAll, 0)), 11);
        EXPECT_EQ(after->List(output_)->size(), 2);
      }
    }
  }
  EXPECT_GE(points, 200);
  EXPECT_GE(kept_old, 50);
}

// The same with ranks that write at the same time.
TEST_F(CheckpointSaverTest, ACrashOfAllRanksLeavesAWholeCheckpoint) {
  CrashingFiles counting;
  ASSERT_TRUE(SaveOnce(3, counting, 1, 1, false));
  const int64_t before = counting.changes();
  ASSERT_TRUE(SaveOnce(3, counting, 2, 2, false));
  const int64_t changes = counting.changes() - before;
  for (int64_t stop = 0; stop <= changes; stop += 3) {
    CrashingFiles files;
    ASSERT_TRUE(SaveOnce(3, files, 1, 1, false));
    files.StopAfter(stop);
    const bool done = SaveOnce(3, files, 2, 2, /*background=*/true);
    const auto after = files.AfterCrash(CrashingFiles::Lost::kByChance, stop);
    const int64_t latest = Latest(*after);
    EXPECT_TRUE(latest == 2 || (latest == 1 && !done)) << latest;
    // Fewer ranks go on.
    ASSERT_TRUE(SaveOnce(2, *after, 2, 3, false));
    EXPECT_EQ(Latest(*after->AfterCrash(CrashingFiles::Lost::kAll, 0)), 3);
  }
}

// A single operation fails, wherever: the save is reported or done, what was saved before is there,
// byte for byte, and the next save works.
TEST_F(CheckpointSaverTest, AFaultIsReportedAndSpoilsNothing) {
  const auto disk_full = absl::ResourceExhaustedError("No space left on device");
  for (const int ranks : {1, 2}) {
    for (const int64_t step : {1, 2}) {  // the step that is there, and a further one
      int64_t failures = 0;
      for (int64_t fail_at = 0;; ++fail_at) {
        CrashingFiles disk;
        ASSERT_TRUE(SaveOnce(ranks, disk, 1, 1, false));
        std::atomic<int64_t> operations{0};
        FaultyFiles files(disk, [&](FileOperation, const std::string&) {
          return operations++ == fail_at ? disk_full : absl::OkStatus();
        });
        const bool done = SaveOnce(ranks, files, step, 2, /*background=*/fail_at % 2 == 1);
        if (operations <= fail_at) break;
        if (!done) {
          ++failures;
          EXPECT_EQ(cause_, disk_full.message());
        }
        const int64_t latest = Latest(disk);
        EXPECT_TRUE(latest == 2 || (latest == 1 && !done)) << fail_at;
        ASSERT_TRUE(SaveOnce(ranks, disk, 3, 3, false));
        EXPECT_EQ(Latest(disk), 3);
        const std::vector<std::string> names = *disk.List(output_);
        for (const std::string& name : names) {
          EXPECT_TRUE(name == "LATEST" || name.size() == 13) << name << ", " << fail_at;
        }
      }
      EXPECT_GT(failures, 10);
    }
  }
}

// Each with the sentence of the machine's own files.
TEST_F(CheckpointSaverTest, CausesAreNamed) {
  output_ = JoinPath(NewTestDirectory(), "run");
  ASSERT_TRUE(SaveOnce(2, PosixFileSystem(), 1, 1, false));
  const auto expect = [&](FileOperation operation, const std::string& part,
                          const absl::Status& status) {
    FaultyFiles files(PosixFileSystem(), [&](FileOperation now, const std::string& path) {
      return now == operation && path.find(part) != std::string::npos ? status : absl::OkStatus();
    });
    for (const bool background : {false, true}) {
      EXPECT_FALSE(SaveOnce(2, files, 2, 2, background));
      EXPECT_EQ(cause_, status.message());
      EXPECT_EQ(Latest(PosixFileSystem()), 1);
      EXPECT_EQ(*PosixFileSystem().List(output_),
                (std::vector<std::string>{"LATEST", "step_00000001"}));
    }
  };
  expect(FileOperation::kAppend, "weights_00001", absl::ResourceExhaustedError("full"));
  expect(FileOperation::kSync, "optimizer_00000", absl::DataLossError("input/output error"));
  expect(FileOperation::kOpen, "weights_00000", absl::PermissionDeniedError("read-only"));
  expect(FileOperation::kCreateDirectory, "step_00000002", absl::PermissionDeniedError("no"));
  expect(FileOperation::kSync, "manifest.json", absl::DataLossError("input/output error"));
  expect(FileOperation::kRename, "step_00000002", absl::PermissionDeniedError("no"));
}

// Holds writes of a step until it is opened.
class Gate {
 public:
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST_F(CheckpointSaverTest, ASecondSaveWaitsForTheFirst) {
  CrashingFiles disk;
  Gate gate;
  FaultyFiles files(disk, [&](FileOperation operation, const std::string& path) {
    // One rank's shard alone is late.
    if (operation == FileOperation::kSync &&
        path.find("step_00000001.tmp/weights_00001") != std::string::npos) {
      gate.Wait();
    }
    return absl::OkStatus();
  });
  RunRanks(2, files, [&](SavingRank& rank) -> absl::Status {
    CheckpointSaver& saver = rank.saver();
    FATHOM_RETURN_IF_ERROR(rank.Save(1, 1, /*background=*/true));
    for (int step = 0; step < 20; ++step) FATHOM_RETURN_IF_ERROR(saver.Poll());
    EXPECT_TRUE(saver.in_flight());
    EXPECT_EQ(saver.saved_step(), -1);
    EXPECT_FALSE(files.Exists("/runs/run/LATEST"));
    gate.Open();
    FATHOM_RETURN_IF_ERROR(rank.Save(2, 2, /*background=*/true));
    EXPECT_EQ(saver.saved_step(), 1);
    FATHOM_RETURN_IF_ERROR(saver.Finish());
    EXPECT_EQ(saver.saved_step(), 2);
    EXPECT_FALSE(saver.TakeFailure().has_value());
    return absl::OkStatus();
  });
  EXPECT_EQ(log_, std::vector<std::string>{"step 2: the save of step 1 is still in flight, and "
                                           "training waits for it"});
  EXPECT_EQ(Latest(disk), 2);
}

TEST_F(CheckpointSaverTest, RetentionFailingIsAWarning) {
  CrashingFiles disk;
  ASSERT_TRUE(SaveOnce(1, disk, 1, 1, false));
  FaultyFiles files(disk, [&](FileOperation operation, const std::string& path) {
    return operation == FileOperation::kRename && path == "/runs/run/step_00000001.tmp"
               ? absl::PermissionDeniedError("cannot rename it")
               : absl::OkStatus();
  });
  EXPECT_TRUE(SaveOnce(1, files, 2, 2, true, /*keep=*/1));
  EXPECT_EQ(log_,
            std::vector<std::string>{"old checkpoints could not be removed: cannot rename it"});
  EXPECT_EQ(Latest(disk), 2);
}

}  // namespace
}  // namespace fathom
