// A checkpoint of any layout loads into any other: every element of the weights and of the
// optimizer's state is filled with an id of its own, saved, and found in its place.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "core/job.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint_saver.h"
#include "runtime/memory_plan.h"
#include "runtime/run_state.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

const std::map<std::string, std::vector<std::string>>& Layouts() {
  static const auto& layouts = *new std::map<std::string, std::vector<std::string>>{
      {"one", {}},
      {"T4", {"parallel.tensor=4"}},
      {"T2P2", {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"}},
      {"P3", {"parallel.pipeline=3"}},
      {"interleaved",
       {"parallel.pipeline=2", "parallel.schedule=INTERLEAVED", "parallel.virtual_stages=2"}},
      {"D4Zero", {"parallel.data=4", "parallel.zero=1", "parallel.bucket_elements=30000"}},
      {"D2", {"parallel.data=2"}},
      {"all",
       {"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2", "parallel.zero=1",
        "parallel.lanes=2"}},
  };
  return layouts;
}

Job MakeJob(const std::string& optimizer, const std::string& layout, const std::string& output) {
  std::vector<std::string> settings = {"train.precision=FP64",   "train.sequence_length=32",
                                       "train.global_batch=8",   "train.micro_batch=1",
                                       "train.output=" + output, "optimizer.kind=" + optimizer,
                                       "checkpoint.every=1"};
  const std::vector<std::string>& of_layout = Layouts().at(layout);
  settings.insert(settings.end(), of_layout.begin(), of_layout.end());
  const auto job = ReadJob("launch/jobs/toy_xmod.txtpb", settings);
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *job;
}

// Ids are below 2^53: a number for the tensor's name, and the place in the whole tensor.
class Ids {
 public:
  explicit Ids(const ModelConfig& model) {
    for (const std::string& name : ParameterNames(model)) {
      for (const char* suffix : {"", ".momentum", ".first", ".second"}) {
        numbers_.emplace(name + suffix, numbers_.size() + 1);
      }
    }
  }
  double Of(const std::string& name, int64_t element) const {
    return static_cast<double>(numbers_.at(name) * (int64_t{1} << 32) + element);
  }
  // Calls visit(value, id) for each element of a slice that `data` holds.
  template <class Visit>
  void VisitElements(const std::string& name, const ParameterSpec& spec, const ElementRange& range,
                     const Tensor& data, Visit visit) const {
    for (const SliceRun& run : RunsOf(spec.shape, {spec.part, range})) {
      for (int64_t i = 0; i < run.count; ++i) {
        visit(data.data<double>()[run.in_slice + i], Of(name, run.in_tensor + i));
      }
    }
  }
  // The same for all that a rank holds.
  template <class Visit>
  void VisitAll(TrainingModel& training, Visit visit) const {
    for (const Parameter& parameter : training.parameters().all()) {
      VisitElements(parameter.spec.name, parameter.spec, {0, parameter.master.elements()},
                    parameter.master, visit);
    }
    for (const Optimizer::StateTensor& state : training.optimizer().state()) {
      VisitElements(state.name, state.parameter->spec, state.range, state.tensor, visit);
    }
  }

 private:
  std::map<std::string, int64_t> numbers_;
};

class CheckpointLayouts : public ::testing::TestWithParam<const char*> {};

TEST_P(CheckpointLayouts, EveryElementComesOutInItsPlace) {
  const std::string optimizer = GetParam();
  const std::string directory = JoinPath(::testing::TempDir(), "checkpoint_layouts_" + optimizer);
  ASSERT_TRUE(PosixFileSystem().RemoveAll(directory).ok());
  const Ids ids(MakeJob(optimizer, "one", directory).model);
  for (const auto& [from, unused] : Layouts()) {
    SCOPED_TRACE("from " + from);
    const std::string output = JoinPath(directory, from);
    const Job job = MakeJob(optimizer, from, output);
    const absl::Status saved = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
      TrainingModel& training = rank.training;
      ids.VisitAll(training, [](double& value, double id) { value = id; });
      training.optimizer().step().data<double>()[2] = 42;
      CheckpointSaver saver(PosixFileSystem(), job, rank.groups, training.stream(),
                            [](const std::string&) {});
      FATHOM_RETURN_IF_ERROR(
          saver.Save({.step = 1,
                      .weights = WeightPieces(training.parameters(), rank.groups),
                      .optimizer = OptimizerPieces(training.optimizer(), rank.groups)},
                     /*background=*/false));
      EXPECT_EQ(saver.saved_step(), 1);
      return absl::OkStatus();
    });
    ASSERT_TRUE(saved.ok()) << saved;
    for (const auto& [to, also_unused] : Layouts()) {
      SCOPED_TRACE("to " + to);
      const Job other = MakeJob(optimizer, to, output);
      std::atomic<int64_t> seen{0}, wrong{0};
      const absl::Status loaded = RunStepRanks(other, {}, [&](StepRank& rank) -> absl::Status {
        TrainingModel& training = rank.training;
        Stream& stream = training.stream();
        FATHOM_ASSIGN_OR_RETURN(
            const Checkpoint checkpoint,
            OpenCheckpoint(PosixFileSystem(), JoinPath(output, "step_00000001")));
        FATHOM_RETURN_IF_ERROR(LoadWeights(*checkpoint.weights, ParameterNames(other.model),
                                           training.parameters(), stream));
        FATHOM_RETURN_IF_ERROR(LoadOptimizer(*checkpoint.optimizer, training.optimizer(), stream));
        ids.VisitAll(training, [&](double& value, double id) {
          ++seen;
          wrong += value != id;
        });
        wrong += training.optimizer().step().data<double>()[2] != 42;
        return absl::OkStatus();
      });
      ASSERT_TRUE(loaded.ok()) << loaded;
      EXPECT_GT(seen, 100000);
      EXPECT_EQ(wrong, 0);
    }
  }
}

// Replicas share the writing: none has much more than its part.
TEST(CheckpointLayouts, ReplicasShareTheWriting) {
  for (const char* layout : {"D2", "D4Zero"}) {
    const std::string output = JoinPath(NewTestDirectory(), layout);
    const Job job = MakeJob("MUON", layout, output);
    const absl::Status saved = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
      TrainingModel& training = rank.training;
      CheckpointSaver saver(PosixFileSystem(), job, rank.groups, training.stream(),
                            [](const std::string&) {});
      FATHOM_RETURN_IF_ERROR(
          saver.Save({.step = 1,
                      .weights = WeightPieces(training.parameters(), rank.groups),
                      .optimizer = OptimizerPieces(training.optimizer(), rank.groups)},
                     /*background=*/true));
      FATHOM_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(job, rank.groups.rank()));
      EXPECT_EQ(saver.snapshot_bytes(), plan.snapshot);
      EXPECT_GT(plan.snapshot, 100000);
      return absl::OkStatus();
    });
    // A save that its rank did not wait for is not published.
    ASSERT_TRUE(saved.ok()) << saved;
    const std::string directory = JoinPath(output, "step_00000001.tmp");
    int64_t total = 0, most = 0;
    const std::vector<std::string> names = *PosixFileSystem().List(directory);
    for (const std::string& name : names) {
      const int64_t size = (*PosixFileSystem().OpenForRead(JoinPath(directory, name)))->size();
      total += size;
      most = std::max(most, size);
    }
    EXPECT_LT(most, 0.75 * static_cast<double>(total) / static_cast<double>(job.parallel.data))
        << layout << ": " << most << " of " << total;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointLayouts, ::testing::Values("MUON", "ADAMW"));

}  // namespace
}  // namespace fathom
