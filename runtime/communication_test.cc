// What a training step asks of its communicators: calls and bytes by group and operation, against
// the formulas of docs/communication.md, which are written here a second time from the sizes of the
// job alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

using Total = CommunicationLog::Total;
// By group and operation.
using Totals = std::map<std::pair<std::string, std::string>, Total>;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The size of part `i` of `total` things in `parts` parts, the first ones larger.
int64_t PartSize(int64_t total, int64_t parts, int64_t i) {
  return total / parts + (i < total % parts ? 1 : 0);
}
int64_t Padded(int64_t elements) { return CeilDivide(elements, 64) * 64; }

// Hidden matrices that lie together, or a token table.
struct Matrices {
  bool table = false;
  std::vector<std::pair<int64_t, int64_t>> shapes;  // whole: rows, columns
  bool split_columns = false;                       // by the tensor ranks; else rows
  int64_t elements = 0;                             // of this rank's part, padded
  int data_owner = -1;
};

// The formulas, for one rank.
class StepFormula {
 public:
  // `cuts`: the first layer of every part of the pipeline.
  StepFormula(const Job& job, std::vector<int64_t> cuts, int rank)
      : job_(job), model_(job.model), cuts_(std::move(cuts)) {
    tensor_ranks_ = job.parallel.tensor;
    data_ranks_ = job.parallel.data;
    tensor_ = rank % tensor_ranks_;
    data_ = rank / tensor_ranks_ % data_ranks_;
    stage_ = rank / tensor_ranks_ / data_ranks_;
    cuts_.push_back(model_.plan.layers.size());
    n_ = job.train.micro_batch * job.train.sequence_length;
    micro_batches_ = job.train.global_batch / job.train.micro_batch / data_ranks_;
    activation_ = job.train.precision == Precision::kBFloat16  ? 2
                  : job.train.precision == Precision::kFloat64 ? 8
                                                               : 4;
    statistic_ = job.train.precision == Precision::kFloat64 ? 8 : 4;
  }

  Totals Compute() {
    const int64_t parts = static_cast<int64_t>(cuts_.size()) - 1;
    for (int64_t part = stage_; part < parts; part += job_.parallel.pipeline) {
      const bool first = part == 0;
      const bool last = part == parts - 1;
      AddParameters(cuts_[part], cuts_[part + 1], first, last);
      if (tensor_ranks_ > 1) AddActivations(cuts_[part], cuts_[part + 1], first, last);
      if (job_.parallel.pipeline > 1) AddTransfers(cuts_[part], cuts_[part + 1], first, last);
    }
    if (tensor_ranks_ > 1) Add("tensor", "all-reduce", 1, vectors_ * statistic_);
    AssignOwners();
    AddBuckets();
    if (job_.optimizer.muon && tensor_ranks_ > 1) AddMuon();
    if (job_.parallel.ranks() > 1) Add("world", "all-reduce", 1, 4 * 8);
    return totals_;
  }

 private:
  void Add(const std::string& group, const std::string& operation, int64_t calls, int64_t bytes) {
    if (calls == 0) return;
    Total& total = totals_[{group, operation}];
    total.calls += calls;
    total.bytes += calls * bytes;
  }

  bool sparse(int64_t layer) const {
    return model_.plan.layers[layer].spec.kind == LayerKind::kSparse;
  }

  void AddActivations(int64_t begin, int64_t end, bool first, bool last) {
    const bool sequence = job_.parallel.sequence;
    const int64_t all_rows = n_ * model_.d * activation_;
    const auto add = [&](const char* operation, int64_t calls, int64_t bytes) {
      Add("tensor", operation, calls * micro_batches_, bytes);
    };
    for (int64_t layer = begin; layer < end; ++layer) {
      if (sparse(layer)) {
        const int64_t k = job_.train.sequence_length / model_.plan.layers[layer].spec.sparsity;
        add("all-gather", 1, n_ * statistic_);
        add("all-reduce", sequence ? 6 : 4, job_.train.micro_batch * k * model_.d * activation_);
      } else if (sequence) {
        add("all-gather", 4, all_rows);
        add("reduce-scatter", 4, all_rows);
      } else {
        add("all-reduce", 4, all_rows);
      }
    }
    if (first) {
      add(sequence ? "reduce-scatter" : "all-reduce", 1, all_rows);
      if (sequence) add("all-gather", 1, all_rows);
    }
    if (last) {
      const int64_t logits = CeilDivide(model_.vocabulary, tensor_ranks_);
      const int64_t chunk =
          std::min(n_, std::clamp<int64_t>((1 << 21) / logits / 64 * 64, 64, 1024));
      for (int64_t row = 0; row < n_; row += chunk) {
        const int64_t rows = std::min(chunk, n_ - row);
        add("all-reduce", 1, rows * statistic_);
        add("all-reduce", 1, 2 * rows * statistic_);
      }
      add(sequence ? "reduce-scatter" : "all-reduce", 1, all_rows);
      if (sequence) add("all-gather", 1, all_rows);
    }
  }

  void AddTransfers(int64_t begin, int64_t end, bool first, bool last) {
    const int64_t held = job_.parallel.sequence ? PartSize(n_, tensor_ranks_, tensor_) : n_;
    const int64_t residual = held * model_.d * activation_;
    const auto add = [&](int64_t border, const char* activations, const char* gradients) {
      Add("pipeline", activations, micro_batches_, residual);
      Add("pipeline", gradients, micro_batches_, residual);
      if (sparse(border - 1)) Add("pipeline", activations, micro_batches_, n_ * statistic_);
    };
    if (!first) add(begin, "receive", "send");
    if (!last) add(end, "send", "receive");
  }

  void AddParameters(int64_t begin, int64_t end, bool first, bool last) {
    const int64_t d = model_.d;
    const int64_t q = model_.heads * model_.head_dim;
    const int64_t kv = model_.kv_heads * model_.head_dim;
    const int64_t table = PartSize(model_.vocabulary, tensor_ranks_, tensor_) * d;
    if (first) matrices_.push_back({.table = true, .shapes = {}, .elements = Padded(table)});
    const auto add = [&](std::vector<std::pair<int64_t, int64_t>> shapes, bool split_columns) {
      int64_t elements = 0;
      for (const auto& [rows, columns] : shapes) elements += rows * columns / tensor_ranks_;
      matrices_.push_back({.shapes = std::move(shapes),
                           .split_columns = split_columns,
                           .elements = Padded(elements)});
    };
    for (int64_t layer = begin; layer < end; ++layer) {
      add({{q, d}, {kv, d}, {kv, d}}, false);
      add({{d, q}}, true);
      add({{model_.ffn, d}, {model_.ffn, d}}, false);
      add({{d, model_.ffn}}, true);
      vectors_ += 2 * Padded(d) + 2 * Padded(model_.head_dim);
      if (!sparse(layer)) continue;
      vectors_ += Padded(d) + (model_.gate == Gate::kXMod ? Padded(1) : 0);
    }
    if (last) {
      vectors_ += Padded(d);
      matrices_.push_back({.table = true, .shapes = {}, .elements = Padded(table)});
    }
  }

  static double Cost(const std::pair<int64_t, int64_t>& shape) {
    const double small = std::min(shape.first, shape.second);
    const double large = std::max(shape.first, shape.second);
    return 4 * small * small * large + 2 * small * small * small;
  }

  // Takes what costs most first, always for the owner who has least.
  static std::vector<int> Balance(const std::vector<double>& costs, int owners) {
    std::vector<double> load(owners, 0);
    std::vector<int> owner(costs.size(), -1);
    for (size_t taken = 0; taken < costs.size(); ++taken) {
      int next = -1;
      for (int i = 0; i < static_cast<int>(costs.size()); ++i) {
        if (owner[i] < 0 && (next < 0 || costs[i] > costs[next])) next = i;
      }
      owner[next] = static_cast<int>(std::min_element(load.begin(), load.end()) - load.begin());
      load[owner[next]] += costs[next];
    }
    return owner;
  }

  void AssignOwners() {
    std::vector<double> costs;
    for (const Matrices& unit : matrices_) {
      double cost = 0;
      for (const auto& shape : unit.shapes) cost += Cost(shape);
      if (!unit.table) costs.push_back(cost);
    }
    const std::vector<int> owners = Balance(costs, data_ranks_);
    size_t i = 0;
    for (Matrices& unit : matrices_) {
      if (!unit.table) unit.data_owner = owners[i++];
    }
  }

  void AddBuckets() {
    if (data_ranks_ == 1) return;
    const bool shard = job_.parallel.zero > 0;
    const auto add = [&](int64_t elements, bool of_muon) {
      Add("data", shard ? "reduce-scatter" : "all-reduce", 1,
          elements * (job_.parallel.gradients_in_bfloat16 ? 2 : statistic_));
      if (shard || of_muon) Add("data", "all-gather", 1, elements * statistic_);
    };
    int64_t open = 0;
    const auto close = [&] {
      if (open > 0) add(open, job_.optimizer.muon);
      open = 0;
    };
    for (auto unit = matrices_.rbegin(); unit != matrices_.rend(); ++unit) {
      if (unit->table || open + unit->elements > job_.parallel.bucket_elements) close();
      if (unit->table) {
        add(unit->elements, false);
      } else {
        open += unit->elements;
      }
    }
    close();
    add(vectors_, false);
  }

  void AddMuon() {
    std::vector<double> costs;
    std::vector<std::array<int64_t, 3>> kinds;  // rows, columns, how it is split
    for (const Matrices& unit : matrices_) {
      if (unit.data_owner != data_) continue;
      for (const auto& shape : unit.shapes) {
        costs.push_back(Cost(shape));
        kinds.push_back({shape.first, shape.second, unit.split_columns});
      }
    }
    const std::vector<int> owners = Balance(costs, tensor_ranks_);
    std::map<std::array<int64_t, 3>, std::vector<int64_t>> owned;
    for (size_t i = 0; i < kinds.size(); ++i) {
      std::vector<int64_t>& counts = owned[kinds[i]];
      counts.resize(tensor_ranks_);
      ++counts[owners[i]];
    }
    for (const auto& [kind, counts] : owned) {
      const int64_t elements = kind[0] * kind[1];
      const int64_t at_once = std::max<int64_t>(1, (1 << 22) / elements);
      int64_t all = 0;
      for (const int64_t count : counts) all += count;
      const int64_t calls =
          2 * CeilDivide(*std::max_element(counts.begin(), counts.end()), at_once);
      Total& total = totals_[{"tensor", "all-to-all"}];
      total.calls += calls;
      total.bytes += all * (elements / tensor_ranks_) * statistic_;
      total.bytes += counts[tensor_] * elements * statistic_;
    }
  }

  const Job& job_;
  const ModelConfig& model_;
  std::vector<int64_t> cuts_;
  int64_t tensor_ranks_, data_ranks_, tensor_, data_, stage_;
  int64_t n_, micro_batches_;
  int64_t activation_, statistic_;  // bytes
  std::vector<Matrices> matrices_;  // in the order of the layers
  int64_t vectors_ = 0;             // elements, each vector padded
  Totals totals_;
};

std::string ToText(const Totals& totals) {
  std::string text;
  for (const auto& [key, total] : totals) {
    absl::StrAppend(&text, "  ", key.first, " ", key.second, ": ", total.calls, " calls, ",
                    total.bytes, " bytes\n");
  }
  return text;
}

Job Read(const std::string& name, const std::vector<std::string>& overrides) {
  absl::StatusOr<Job> job = ReadJob("launch/jobs/" + name + ".txtpb", overrides);
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *std::move(job);
}

// What each rank asked for in one step.
std::vector<Totals> RunInProcess(const Job& job) {
  std::vector<Totals> totals(job.parallel.ranks());
  const absl::Status status = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
    FATHOM_RETURN_IF_ERROR(rank.TrainAndUpdate());
    totals[rank.groups.rank()] = rank.log.totals();
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return totals;
}

std::vector<CommunicationLog::Record> RunDry(const Job& job, int rank) {
  std::vector<CommunicationLog::Record> records;
  const absl::Status status = RunDryStepRank(job, rank, [&](StepRank& dry) -> absl::Status {
    FATHOM_RETURN_IF_ERROR(dry.TrainAndUpdate());
    records = dry.log.records();
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return records;
}

Totals TotalsOf(const std::vector<CommunicationLog::Record>& records) {
  Totals totals;
  for (const CommunicationLog::Record& record : records) {
    Total& total = totals[{record.group, std::string(Name(record.collective))}];
    ++total.calls;
    total.bytes += record.bytes;
  }
  return totals;
}

struct Layout {
  const char* name;
  std::vector<std::string> overrides;
  // The first layer of every part of the pipeline.
  std::vector<int64_t> dense_cuts = {0};
  std::vector<int64_t> xmod_cuts = {0};
};

const std::vector<Layout>& Layouts() {
  static const auto& layouts = *new std::vector<Layout>{
      {"T2", {"parallel.tensor=2"}},
      {"T4", {"parallel.tensor=4"}},
      {"T2Sequence", {"parallel.tensor=2", "parallel.sequence=true"}},
      {"T2Lanes2", {"parallel.tensor=2", "parallel.lanes=2"}},
      {"T2LongSequence",
       {"parallel.tensor=2", "train.sequence_length=1100", "train.global_batch=1"}},
      {"T2SequenceBFloat16",
       {"parallel.tensor=2", "parallel.sequence=true", "train.precision=BF16"}},
      {"D2", {"parallel.data=2"}},
      {"D2Zero", {"parallel.data=2", "parallel.zero=1"}},
      {"D2ZeroBuckets",
       {"parallel.data=2", "parallel.zero=1", "parallel.bucket_elements=30000",
        "parallel.gradient_reduce=BF16"}},
      {"D2ZeroAdamW", {"parallel.data=2", "parallel.zero=1", "optimizer.kind=ADAMW"}},
      {"P2", {"parallel.pipeline=2"}, {0, 2}, {0, 4}},
      {"P2InsideInterval", {"parallel.pipeline=2", "model.vocabulary=2900"}, {0, 3}, {0, 6}},
      {"P2Interleaved",
       {"parallel.pipeline=2", "parallel.schedule=INTERLEAVED", "parallel.virtual_stages=2"},
       {0, 1, 2, 3},
       {0, 1, 3, 6}},
      {"P2D2T2", {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2"}, {0, 2}, {0, 4}},
      {"P2D2T2All",
       {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "parallel.zero=1",
        "parallel.sequence=true", "train.precision=FP64"},
       {0, 2},
       {0, 4}},
  };
  return layouts;
}

class CommunicationTest : public ::testing::TestWithParam<std::tuple<std::string, Layout>> {};

TEST_P(CommunicationTest, OfAStepIsTheFormula) {
  const auto& [name, layout] = GetParam();
  const Job job = Read(name, layout.overrides);
  const auto& cuts = name == "toy_dense" ? layout.dense_cuts : layout.xmod_cuts;
  const std::vector<Totals> counted = RunInProcess(job);
  for (int rank = 0; rank < static_cast<int>(counted.size()); ++rank) {
    const Totals expected = StepFormula(job, cuts, rank).Compute();
    EXPECT_EQ(ToText(counted[rank]), ToText(expected)) << "rank " << rank;
    EXPECT_EQ(ToText(TotalsOf(RunDry(job, rank))), ToText(counted[rank])) << "dry rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Toys, CommunicationTest,
                         ::testing::Combine(::testing::Values("toy_dense", "toy_xmod"),
                                            ::testing::ValuesIn(Layouts())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                         });

// The table of docs/communication.md.
TEST(Communication, TheTableIsWhatIsCounted) {
  std::ifstream file("docs/communication.md");
  std::map<std::string, Totals> table;  // by layout
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    int64_t calls, bytes;
    if (cells.size() != 7) continue;
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (!absl::SimpleAtoi(cells[4], &calls) || !absl::SimpleAtoi(cells[5], &bytes)) continue;
    table[cells[1]][{cells[2], cells[3]}] = {calls, bytes};
  }
  int found = 0;
  for (const Layout& layout : Layouts()) {
    const auto entry = table.find(layout.name);
    if (entry == table.end()) continue;
    ++found;
    const Totals counted = TotalsOf(RunDry(Read("toy_xmod", layout.overrides), 0));
    EXPECT_EQ(ToText(entry->second), ToText(counted)) << layout.name;
  }
  EXPECT_EQ(found, 7);
  EXPECT_EQ(table.size(), 7);
}

// What of a record must be the same on all ranks of a tensor group.
std::vector<std::string> OrderOf(const std::vector<CommunicationLog::Record>& records) {
  std::vector<std::string> order;
  for (const CommunicationLog::Record& record : records) {
    order.push_back(
        absl::StrCat(record.group, " ", std::string(Name(record.collective)), " ", record.bytes));
  }
  return order;
}

// Forward and backward of a toy over two tensor ranks; rank 1 does not begin before rank 0 has
// asked for `held_back` operations.
std::vector<std::vector<std::string>> RunOrder(int lanes, size_t held_back) {
  const Job job = Read("toy_xmod", {"parallel.tensor=2", absl::StrCat("parallel.lanes=", lanes)});
  std::vector<std::vector<std::string>> orders(2);
  std::atomic<CommunicationLog*> first_log{nullptr};
  const auto has_begun = [&] {
    CommunicationLog* log = first_log;
    return log != nullptr && log->records().size() >= held_back;
  };
  const absl::Status status = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
    if (rank.groups.first()) first_log = &rank.log;
    for (int i = 0; !rank.groups.first() && !has_begun(); ++i) {
      if (i == 10000) return absl::DeadlineExceededError("rank 0 asked for too few operations");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    FATHOM_RETURN_IF_ERROR(rank.Train());
    orders[rank.groups.rank()] = OrderOf(rank.log.records());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return orders;
}

// Two lanes: each operation of the lower lane is followed by the same one of the other, on every
// rank. And before the lower lane waits: rank 0 asks for the operations of both lanes while no
// other rank has begun, so that the first one cannot end.
TEST(Communication, LanesTakeTurnsInTheSameOrderOnAllRanks) {
  const auto one = RunOrder(1, 0);
  const auto two = RunOrder(2, 2);
  EXPECT_EQ(one[0], one[1]);
  EXPECT_EQ(two[0], two[1]);
  constexpr size_t kMicroBatches = 8;
  ASSERT_FALSE(one[0].empty());
  ASSERT_EQ(one[0].size() % kMicroBatches, 0);
  const size_t each = one[0].size() / kMicroBatches;
  std::vector<std::string> expected;
  for (size_t pair = 0; pair < kMicroBatches / 2; ++pair) {
    for (size_t i = 0; i < each; ++i) expected.insert(expected.end(), 2, one[0][i]);
  }
  EXPECT_EQ(two[0], expected);
}

// The sizes that the toys do not reach: matrices that are orthogonalised one at a time, buckets
// that fill up, a head in many chunks.
TEST(Communication, OfTheLargestJobIsTheFormula) {
  const Job job =
      Read("1650m_xmod_a3k16", {"parallel.tensor=8", "parallel.data=8", "parallel.sequence=true",
                                "parallel.zero=1", "train.global_batch=16", "train.micro_batch=1"});
  for (const int rank : {0, 3, 63}) {
    const Totals counted = TotalsOf(RunDry(job, rank));
    const Totals expected = StepFormula(job, {0}, rank).Compute();
    EXPECT_EQ(ToText(counted), ToText(expected)) << "rank " << rank;
  }
}

// Where the vocabulary cannot be divided, tensor ranks have different numbers of logits, here on
// both sides of a border of the chunk's size; they cut the rows into the same chunks all the same.
TEST(Communication, TensorRanksCutTheHeadAlike) {
  const Job job =
      Read("toy_dense", {"parallel.tensor=2", "model.vocabulary=32769", "train.global_batch=1"});
  for (const int rank : {0, 1}) {
    const Totals counted = TotalsOf(RunDry(job, rank));
    const Totals expected = StepFormula(job, {0}, rank).Compute();
    EXPECT_EQ(ToText(counted), ToText(expected)) << "rank " << rank;
  }
}

// Rows on their way to experts: an even load on the dry device; in process the choices fall as they
// do, and all of them arrive and return.
TEST(Communication, RowsOfExperts) {
  struct Case {
    std::vector<std::string> layout;
    int64_t rows;      // of a rank in a micro-batch
    int64_t replicas;  // of an expert
  };
  const Case cases[] = {
      {{"parallel.data=2", "parallel.expert=2"}, 128, 1},
      {{"parallel.data=4", "parallel.expert=2"}, 128, 2},
      {{"parallel.data=2", "parallel.tensor=2", "parallel.expert=4"}, 64, 1},
      {{"parallel.data=2", "parallel.tensor=2", "parallel.expert=2", "parallel.sequence=true"},
       64,
       2},
      {{"parallel.data=2", "parallel.tensor=2", "parallel.expert=2", "parallel.expert_tensor=true"},
       128,
       1},
  };
  constexpr int64_t kLayers = 4, kExperts = 8, kRouted = 2, kWidth = 64;
  for (const Case& c : cases) {
    const Job job = Read("toy_moe", c.layout);
    const int64_t ranks = job.parallel.ranks();
    const int64_t layers = kLayers * job.train.global_batch / job.parallel.data;
    const int64_t choices = c.rows * kRouted;
    const Total expected = {.calls = layers * 5,
                            .bytes = layers * (kExperts * 4 + 4 * choices * kWidth * 4)};
    const Totals dry = TotalsOf(RunDry(job, 0));
    ASSERT_TRUE(dry.count({"expert", "all-to-all"}));
    EXPECT_EQ(dry.at({"expert", "all-to-all"}).calls, expected.calls);
    EXPECT_EQ(dry.at({"expert", "all-to-all"}).bytes, expected.bytes);

    int64_t bytes = 0;
    for (const Totals& totals : RunInProcess(job)) {
      EXPECT_EQ(totals.at({"expert", "all-to-all"}).calls, expected.calls);
      bytes += totals.at({"expert", "all-to-all"}).bytes;
      // Gradients of the experts that a rank holds, then Muon's updates to all copies.
      const int64_t parts = job.parallel.expert_tensor ? 2 : 1;
      const int64_t held = kLayers * kExperts / job.parallel.expert * 3 * kWidth * 24 / parts * 4;
      const auto reduced = totals.find({"expert replicas", "all-reduce"});
      EXPECT_EQ(reduced == totals.end() ? 0 : reduced->second.bytes, c.replicas > 1 ? held : 0);
      EXPECT_EQ(totals.count({"expert replicas", "all-gather"}), c.replicas > 1 ? 1 : 0);
    }
    EXPECT_EQ(bytes, ranks * expected.bytes);
  }
}

}  // namespace
}  // namespace fathom
