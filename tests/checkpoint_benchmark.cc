// How fast checkpoints are saved and loaded, against a plain sequential write and read of as many
// bytes on the same disk, and how much saves in the background slow training down.
//
// usage: checkpoint_benchmark files DIRECTORY [MEGABYTES [REPETITIONS]]
//        checkpoint_benchmark training DIRECTORY [REPETITIONS] [FIELD=VALUE]...
// The second one trains launch/jobs/bench_dense.txtpb, at least 4096 tokens a step, and runs in the
// repository's folder.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cpu_device.h"
#include "core/parallel_for.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint_saver.h"
#include "runtime/run_state.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

constexpr int64_t kTensorBytes = int64_t{1} << 24;
constexpr int kStepsPerSave = 10;

void Check(const absl::Status& status) { FATHOM_CHECK(status.ok()) << status.message(); }

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// So that what is read comes from the disk.
void DropFromMemory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  FATHOM_CHECK(descriptor >= 0) << path;
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  ::close(descriptor);
}

void WritePlainly(const std::string& path, const std::vector<char>& data) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  FATHOM_CHECK(descriptor >= 0) << path;
  for (size_t at = 0; at < data.size();) {
    const ssize_t written =
        ::write(descriptor, data.data() + at, std::min<size_t>(data.size() - at, kBlockBytes));
    FATHOM_CHECK(written > 0) << path;
    at += written;
  }
  FATHOM_CHECK_EQ(::fsync(descriptor), 0);
  ::close(descriptor);
}

void ReadPlainly(const std::string& path, std::vector<char>* data) {
  const int descriptor = ::open(path.c_str(), O_RDONLY);
  FATHOM_CHECK(descriptor >= 0) << path;
  for (size_t at = 0; at < data->size();) {
    const ssize_t got =
        ::read(descriptor, data->data() + at, std::min<size_t>(data->size() - at, kBlockBytes));
    FATHOM_CHECK(got > 0) << path;
    at += got;
  }
  ::close(descriptor);
}

Job BenchJob(const std::string& output, std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"train.output=" + output, "train.global_batch=1",
                                     "train.micro_batch=1", "data.text=unused"});
  const auto job = ReadJob("launch/jobs/bench_dense.txtpb", settings);
  Check(job.status());
  return *job;
}

void PrintRates(const char* what, double bytes, const std::vector<double>& plain,
                const std::vector<double>& own) {
  std::vector<double> ratios;
  for (size_t i = 0; i < plain.size(); ++i) ratios.push_back(plain[i] / own[i]);
  std::printf("%-7s plain %.0f MB/s, checkpoint %.0f MB/s, ratio %.2f (of %zu: %.2f to %.2f)\n",
              what, bytes / Median(plain) / 1e6, bytes / Median(own) / 1e6, Median(ratios),
              ratios.size(), *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()));
}

// The one that comes second may find the disk in another state, so they take turns.
void InTurns(int i, const std::function<void()>& a, const std::function<void()>& b) {
  (i % 2 == 0 ? a : b)();
  (i % 2 == 0 ? b : a)();
}

void MeasureFiles(const std::string& directory, int64_t megabytes, int repetitions) {
  const int64_t tensors = std::max<int64_t>(1, megabytes * 1000000 / kTensorBytes);
  std::vector<char> data(tensors * kTensorBytes);
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= data.size(); i += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(data.data() + i, &state, 8);
  }
  CheckpointContents contents;
  contents.step = 1;
  for (int64_t i = 0; i < tensors; ++i) {
    contents.weights.push_back({.name = absl::StrCat("tensor_", i),
                                .dtype = DType::kInt64,
                                .shape = {kTensorBytes / 8},
                                .data = data.data() + i * kTensorBytes});
  }
  FileSystem& files = PosixFileSystem();
  Check(files.CreateDirectories(directory));
  const std::string plain_file = JoinPath(directory, "plain");
  const std::string output = JoinPath(directory, "run");
  const std::string shard = JoinPath(output, "step_00000001/weights_00000.safetensors");
  std::vector<double> plain_writes, saves, plain_reads, loads;
  std::vector<char> read(data.size());
  WorkerPool workers(LoadingThreads());
  const auto write_plainly = [&] {
    plain_writes.push_back(SecondsOf([&] { WritePlainly(plain_file, data); }));
  };
  const auto save = [&] {
    saves.push_back(SecondsOf([&] { Check(WriteCheckpoint(files, output, contents)); }));
  };
  // The checkpoint's own file, so that both read the same place of the disk.
  const auto read_plainly = [&] {
    DropFromMemory(shard);
    plain_reads.push_back(SecondsOf([&] { ReadPlainly(shard, &read); }));
  };
  const auto load = [&] {
    std::fill(read.begin(), read.end(), 0);
    DropFromMemory(shard);
    loads.push_back(SecondsOf([&] {
      const auto checkpoint = OpenCheckpoint(files, JoinPath(output, "step_00000001"));
      Check(checkpoint.status());
      Check(ParallelFor(workers, tensors, [&](int64_t t) {
        const NamedArray& tensor = contents.weights[t];
        return checkpoint->weights->Read(tensor.name, tensor.dtype, tensor.shape,
                                         read.data() + t * kTensorBytes);
      }));
    }));
    FATHOM_CHECK(read == data);
  };
  for (int i = 0; i < repetitions; ++i) {
    Check(files.RemoveAll(plain_file));
    Check(files.RemoveAll(output));
    InTurns(i, write_plainly, save);
    // The first time, what lies under this machine's disk may be busy writing still.
    ReadPlainly(shard, &read);
    InTurns(i, read_plainly, load);
  }
  PrintRates("saving", static_cast<double>(data.size()), plain_writes, saves);
  PrintRates("loading", static_cast<double>(data.size()), plain_reads, loads);
  Check(files.RemoveAll(plain_file));
  Check(files.RemoveAll(output));
}

// Ten steps with a save in the background at their beginning, against ten without.
void MeasureTraining(const std::string& directory, int repetitions,
                     const std::vector<std::string>& settings) {
  const std::string output = JoinPath(directory, "run");
  const Job job = BenchJob(output, settings);
  CpuDevice device(static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  const std::unique_ptr<RankGroups> groups = RankGroups::Alone();
  CommunicationLog log;
  Check(RunStepRank(job, *groups, device, log, [&](StepRank& rank) -> absl::Status {
    TrainingModel& training = rank.training;
    CheckpointSaver saver(PosixFileSystem(), job, rank.groups, training.stream(),
                          [](const std::string& line) { std::printf("%s\n", line.c_str()); });
    FATHOM_RETURN_IF_ERROR(rank.TrainAndUpdate());  // warms up
    int64_t saves = 0;
    double copying = 0;
    const auto steps = [&](bool save) {
      return SecondsOf([&] {
        if (save) {
          copying += SecondsOf([&] {
            Check(saver.Save({.step = ++saves,
                              .weights = WeightPieces(training.parameters(), rank.groups),
                              .optimizer = OptimizerPieces(training.optimizer(), rank.groups)},
                             /*background=*/true));
          });
        }
        for (int i = 0; i < kStepsPerSave; ++i) {
          Check(rank.TrainAndUpdate());
          Check(saver.Poll());
        }
      });
    };
    std::vector<double> without, with, ratios;
    for (int i = 0; i < repetitions; ++i) {
      without.push_back(steps(false));
      with.push_back(steps(true));
      ratios.push_back(with.back() / without.back());
      const bool written = !saver.in_flight();
      FATHOM_RETURN_IF_ERROR(saver.Finish());
      FATHOM_CHECK(!saver.TakeFailure().has_value());
      if (!written) std::printf("a save took longer than ten steps\n");
      FATHOM_RETURN_IF_ERROR(PosixFileSystem().RemoveAll(output));
    }
    std::printf(
        "%lld tokens a step: ten steps %.2f s, with a save %.2f s (%.3f s of it for the copy), "
        "ratio %.3f (of %zu: %.3f to %.3f)\n",
        static_cast<long long>(job.train.global_batch * job.train.sequence_length), Median(without),
        Median(with), copying / static_cast<double>(saves), Median(ratios), ratios.size(),
        *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()));
    return absl::OkStatus();
  }));
}

int Main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto number = [&](size_t i, int otherwise) {
    return i < words.size() ? std::max(1, std::atoi(words[i].c_str())) : otherwise;
  };
  if (words.size() >= 2 && words[0] == "files") {
    MeasureFiles(words[1], number(2, 1000), number(3, 5));
    return 0;
  }
  if (words.size() >= 2 && words[0] == "training") {
    const size_t first = std::min<size_t>(words.size(), 3);
    MeasureTraining(words[1], number(2, 3), {words.begin() + first, words.end()});
    return 0;
  }
  std::fprintf(stderr,
               "usage: checkpoint_benchmark files DIRECTORY [MEGABYTES [REPETITIONS]]\n"
               "       checkpoint_benchmark training DIRECTORY [REPETITIONS] [FIELD=VALUE]...\n");
  return 2;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
