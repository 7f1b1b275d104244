// The program as a user meets it: commands, exit statuses, one-sentence errors, and runs of the toy
// jobs. It runs in the repository's folder, as the job files expect.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "core/accounting.h"
#include "core/check.h"
#include "core/file.h"
#include "core/job.h"
#include "nlohmann/json.hpp"
#include "runtime/data/token_file.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

struct Result {
  int status;
  std::string output;  // standard output and standard error
};

Result Shell(const std::string& command) {
  std::FILE* pipe = popen(("(" + command + ") 2>&1").c_str(), "r");
  FATHOM_CHECK(pipe != nullptr);
  Result result{};
  std::array<char, 4096> buffer;
  for (size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

Result Fathom(const std::string& arguments) { return Shell("launch/fathom " + arguments); }

class CommandLine : public ::testing::Test {
 protected:
  CommandLine() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = ::testing::TempDir() + "/command_line_" + test->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  // A toy in this test's folder.
  std::string Toy(const std::string& name, const std::string& more = "") const {
    return "launch/jobs/" + name + ".txtpb --set data.directory=" + Path("data") +
           " --set train.output=" + Path("run") + " " + more;
  }

  // Refused in one line that has all of `parts`, and without a trace of a run.
  void ExpectRefusal(const std::string& arguments, const std::vector<std::string>& parts,
                     int status = 2) {
    const Result result = Fathom(arguments);
    EXPECT_EQ(result.status, status) << arguments << "\n" << result.output;
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
    for (const std::string& part : parts) {
      EXPECT_NE(result.output.find(part), std::string::npos)
          << "no \"" << part << "\" in: " << result.output;
    }
    EXPECT_FALSE(std::filesystem::exists(Path("run/metrics.jsonl"))) << arguments;
  }

  std::vector<Json> Metrics() const {
    std::vector<Json> records;
    std::ifstream file(Path("run/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
    return records;
  }

  void WriteTokens(const std::string& name, const std::vector<int32_t>& tokens,
                   int64_t vocabulary) {
    auto writer = TokenFileWriter::Create(PosixFileSystem(), Path(name),
                                          {.tokenizer = "bytes", .vocabulary = vocabulary});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(tokens.data(), static_cast<int64_t>(tokens.size())).ok());
    ASSERT_TRUE((*writer)->EndDocument().ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  std::string directory_;
};

TEST_F(CommandLine, HelpHasAnExample) {
  EXPECT_EQ(Fathom("--help").status, 0);
  EXPECT_NE(Fathom("--help").output.find("launch/jobs/quickstart.txtpb"), std::string::npos);
  for (const char* command : {"inspect", "prepare", "train", "eval"}) {
    const Result help = Fathom(std::string(command) + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_NE(help.output.find("example"), std::string::npos) << command;
  }
}

TEST_F(CommandLine, RefusesWhatItDoesNotKnow) {
  ExpectRefusal("fly", {"fly", "--help"});
  ExpectRefusal("plan", {"not built yet"});
  ExpectRefusal("train", {"one job file is needed"});
  ExpectRefusal("train --fast x", {"--fast", "--resume"});
  ExpectRefusal("train launch/jobs/none.txtpb", {"launch/jobs/none.txtpb"});
  ExpectRefusal("inspect " + Toy("toy_xmod", "--set model.depth=3"), {"depth", "model", "plan"});
  ExpectRefusal("inspect " + Toy("toy_xmod", "--set model.gate=SOFT"), {"SOFT", "XMOD"});
  ExpectRefusal("eval launch/jobs/toy_xmod.txtpb", {"--checkpoint"});
}

TEST_F(CommandLine, RefusesContradictoryJobs) {
  ExpectRefusal("train " + Toy("toy_xmod", "--set train.sequence_length=3"),
                {"model.plan", "sparsity is 4", "train.sequence_length 3"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set model.kv_heads=3"), {"model.heads", "16", "3"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set train.micro_batch=3"),
                {"train.global_batch", "8", "3"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set optimizer.learning_rate=nan"),
                {"optimizer.learning_rate"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set parallel.tensor=2"),
                {"tensor 2", "2 ranks", "launch/mpirun.sh"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set parallel.tensor=3"), {"heads", "16", "3"});
  ExpectRefusal("train " + Toy("toy_xmod", "--set model.vocabulary=256"),
                {"model.vocabulary", "256", "257"});
}

TEST_F(CommandLine, RefusesUnknownFieldsOfAFile) {
  std::ofstream(Path("job.txtpb")) << "model { d: 8\n  colour: 3 }\n";
  ExpectRefusal("train " + Path("job.txtpb"), {"colour", "2"});
}

TEST_F(CommandLine, RefusesBadData) {
  ExpectRefusal("train " + Toy("toy_xmod", "--set data.train=" + Path("none")), {Path("none")});
  std::ofstream(Path("empty.tokens")) << "";
  ExpectRefusal("train " + Toy("toy_xmod", "--set data.train=" + Path("empty.tokens")),
                {Path("empty.tokens")}, 1);
  std::ofstream(Path("empty.txt")) << "";
  // Making its tokens is said before they are found to be too few.
  const Result empty = Fathom("train " + Toy("toy_xmod", "--set data.text=" + Path("empty.txt")));
  EXPECT_EQ(empty.status, 2);
  EXPECT_NE(empty.output.find("too few for one sequence of 128 tokens"), std::string::npos)
      << empty.output;
  WriteTokens("short.tokens", std::vector<int32_t>(50, 1), 257);
  ExpectRefusal("train " + Toy("toy_xmod", "--set data.train=" + Path("short.tokens")),
                {Path("short.tokens"), "128"});
}

TEST_F(CommandLine, RefusesATokenOutsideTheVocabulary) {
  std::vector<int32_t> tokens(1000, 7);
  tokens[700] = 300;
  WriteTokens("large.tokens", tokens, 1000);
  const Result result =
      Fathom("train " + Toy("toy_xmod", "--set data.train=" + Path("large.tokens") +
                                            " --set train.validate_every=0"));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find("large.tokens"), std::string::npos) << result.output;
}

TEST_F(CommandLine, RefusesAnOutputThatCannotBeWritten) {
  std::ofstream(Path("file")) << "kept";
  const Result result =
      Fathom("train " + Toy("toy_xmod", "--set train.output=" + Path("file") + "/run"));
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.output.find(Path("file")), std::string::npos) << result.output;
  std::string kept;
  std::ifstream(Path("file")) >> kept;
  EXPECT_EQ(kept, "kept");
}

TEST_F(CommandLine, TrainsResumesAndEvaluates) {
  const Result first = Fathom("train " + Toy("toy_xmod", "--set train.steps=4"));
  ASSERT_EQ(first.status, 0) << first.output;
  const std::vector<Json> records = Metrics();
  EXPECT_EQ(records.front()["kind"], "validation");
  EXPECT_EQ(records.back()["step"], 4);

  // Again without --resume: refused, and nothing overwritten.
  const Result again = Fathom("train " + Toy("toy_xmod", "--set train.steps=4"));
  EXPECT_EQ(again.status, 2);
  EXPECT_NE(again.output.find("--resume"), std::string::npos);
  EXPECT_EQ(Metrics(), records);

  const Result more = Fathom("train " + Toy("toy_xmod", "--set train.steps=6 --resume"));
  ASSERT_EQ(more.status, 0) << more.output;
  EXPECT_EQ(Metrics().back()["step"], 6);

  const Result eval =
      Fathom("eval " + Toy("toy_xmod", "--json --routing --checkpoint " + Path("run")));
  ASSERT_EQ(eval.status, 0) << eval.output;
  const Json json = Json::parse(eval.output);
  EXPECT_EQ(json["loss_topk"], Metrics().back()["loss_topk"]);
  EXPECT_EQ(json["loss_causal"], Metrics().back()["loss_causal"]);
  EXPECT_EQ(json["layer_share_causal"].size(), 8);
  EXPECT_EQ(json["layer_share_topk"][2], 0.25);
}

TEST_F(CommandLine, ShowsTheLoadOfExperts) {
  const Result train = Fathom("train " + Toy("toy_moe_xmod", "--set train.steps=4"));
  ASSERT_EQ(train.status, 0) << train.output;
  EXPECT_GT(Metrics().back()["step"], 0);
  const std::string eval =
      "eval " + Toy("toy_moe_xmod", "--routing --checkpoint " + Path("run")) + " ";
  const Result json_result = Fathom(eval + "--json");
  ASSERT_EQ(json_result.status, 0) << json_result.output;
  const Json json = Json::parse(json_result.output);
  ASSERT_EQ(json["expert_rows_causal"].size(), 7);
  EXPECT_TRUE(json["expert_rows_causal"][0].empty());
  // Layer 3 has experts and sees all tokens, two experts for each.
  double rows = 0;
  for (const double count : json["expert_rows_causal"][3]) rows += count;
  EXPECT_EQ(json["expert_rows_causal"][3].size(), 8);
  EXPECT_EQ(rows, 2 * json["labels"].get<double>());
  const Result text = Fathom(eval);
  EXPECT_NE(text.output.find("share of each expert"), std::string::npos) << text.output;
}

TEST_F(CommandLine, StopsCleanlyOnASignal) {
  const std::string train = "launch/fathom train " + Toy("toy_xmod", "--set train.steps=100000");
  const std::string script = train + " >" + Path("log") + " 2>&1 & pid=$!; until [ -s " +
                             Path("run/metrics.jsonl") + " ] && [ $(wc -l <" +
                             Path("run/metrics.jsonl") +
                             ") -gt 3 ]; do sleep 0.05; done; kill -TERM $pid; wait $pid";
  const int status = std::system(script.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + 15);
  std::string latest;
  std::ifstream(Path("run/LATEST")) >> latest;
  char expected[32];
  std::snprintf(expected, sizeof(expected), "step_%08d", Metrics().back()["step"].get<int>());
  EXPECT_EQ(latest, expected);
}

// Hundreds of layers, in toy width: the loss falls and every gradient is finite.
TEST_F(CommandLine, TheDeepPlansTrain) {
  for (const char* toy : {"toy_298", "toy_412"}) {
    std::filesystem::remove_all(Path("run"));
    const Result result = Fathom("train " + Toy(toy, "--set train.micro_batch=8"));
    ASSERT_EQ(result.status, 0) << result.output;
    std::vector<double> losses;
    for (const Json& record : Metrics()) {
      if (record["kind"] != "train") continue;
      ASSERT_TRUE(record["loss"].is_number() && record["gradient_norm"].is_number());
      losses.push_back(record["loss"]);
    }
    ASSERT_EQ(losses.size(), 20);
    EXPECT_NEAR(losses[0], std::log(257), 0.1);
    EXPECT_LT(losses[19], losses[0] - 1.5) << toy;
  }
}

// What a pattern's group holds at its last match in a text.
std::string Find(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::string found;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    found = (*match)[1];
  }
  FATHOM_CHECK(!found.empty()) << "no " << pattern << " in " << text;
  return found;
}

// What a run shows: tokens per second times FLOPs per token is its share of the peak, and the FLOPs
// are those of its documents.
TEST_F(CommandLine, UtilisationCountsTheDocuments) {
  constexpr int64_t kLength = 2048, kDocument = 16;
  auto writer = TokenFileWriter::Create(PosixFileSystem(), Path("documents.tokens"),
                                        {.tokenizer = "bytes", .vocabulary = 257});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const std::vector<int32_t> document(kDocument, 7);
  for (int64_t i = 0; i <= kLength / kDocument; ++i) {
    ASSERT_TRUE((*writer)->Append(document.data(), kDocument).ok());
    ASSERT_TRUE((*writer)->EndDocument().ok());
  }
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto job = ReadJob("launch/jobs/toy_dense.txtpb", {});
  ASSERT_TRUE(job.ok()) << job.status();
  const double whole = CountFlopsPerToken(job->model, kLength).exact_training;
  const double apart =
      CountFlopsPerToken(job->model, kLength, kLength * (kDocument + 1) / 2.0).exact_training;
  ASSERT_GT(whole, 3 * apart);

  for (const bool mask : {false, true}) {
    std::filesystem::remove_all(Path("run"));
    const Result run = Fathom("train " + Toy("toy_dense",
                                             "--set train.steps=2 --set "
                                             "train.sequence_length=2048 --set "
                                             "train.global_batch=1 --set data.train=" +
                                                 Path("documents.tokens") +
                                                 (mask ? " --set data.document_mask=true" : "")));
    ASSERT_EQ(run.status, 0) << run.output;
    const std::string step = Find(run.output, "(step 2/2.*)");
    const double thousands = step.find("k tok/s") != std::string::npos ? 1e3 : 1;
    const double tokens = thousands * std::stod(Find(step, "([0-9.]+)k? tok/s"));
    const double peak = std::stod(Find(run.output, "at ([0-9]+) GFLOP/s"));
    const double percent = 100 * tokens * (mask ? apart : whole) / (peak * 1e9);
    // All three are rounded: the share to one decimal, the peak to an integer.
    EXPECT_NEAR(std::stod(Find(step, "util ([0-9.]+)%")), percent,
                0.05 + percent * (0.005 + 0.5 / peak))
        << "document_mask " << mask << "\n"
        << run.output;
  }
}

TEST_F(CommandLine, InspectShowsThePlan) {
  const Result text = Fathom("inspect launch/jobs/936m_xmod_a3k16.txtpb");
  ASSERT_EQ(text.status, 0) << text.output;
  for (const char* part : {"4*D + 6*(48*S16 + D)", "298", "8.24", "4.5057", "memory per rank"}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << " in " << text.output;
  }
  const Json json = Json::parse(Fathom("inspect launch/jobs/toy_xmod.txtpb --json").output);
  EXPECT_EQ(json["plan"], "2*D + 2*(2*S4 + D)");
  EXPECT_EQ(json["layers"], 8);
  EXPECT_EQ(json["model"]["kv_heads"], 8);
  EXPECT_EQ(json["model"]["gate"], "XMOD");
  EXPECT_EQ(json["parallel"], Json({{"tensor", 1},
                                    {"pipeline", 1},
                                    {"data", 1},
                                    {"expert", 1},
                                    {"expert_tensor", false},
                                    {"ranks", 1}}));
  // float32: four bytes a parameter, and a little alignment.
  const double parameters = json["parameters"]["total"];
  EXPECT_NEAR(json["memory_per_rank"]["weights"], 4 * parameters, 0.02 * 4 * parameters);
  EXPECT_GT(json["memory_per_rank"]["activations"], 0);
}

TEST_F(CommandLine, InspectShowsAndVerifiesACheckpoint) {
  ASSERT_EQ(Fathom("train " + Toy("toy_xmod", "--set train.steps=1")).status, 0);
  const Result text = Fathom("inspect " + Path("run"));
  ASSERT_EQ(text.status, 0) << text.output;
  for (const char* part :
       {"step_00000001", "toy_xmod", "8 sequences consumed", "pipeline 1", "weights_00000",
        "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_proj.weight.momentum",
        "float32 [128, 64]"}) {
    EXPECT_NE(text.output.find(part), std::string::npos) << part << " in " << text.output;
  }
  const Json json = Json::parse(Fathom("inspect " + Path("run") + " --json --verify").output);
  EXPECT_EQ(json["step"], 1);
  EXPECT_EQ(json["consumed_sequences"], 8);
  EXPECT_EQ(json["mesh"]["tensor"], 1);
  EXPECT_EQ(json["files"].size(), 2);
  const Json job = Json::parse(Fathom("inspect launch/jobs/toy_xmod.txtpb --json").output);
  EXPECT_EQ(json["weights"]["elements"], job["parameters"]["total"]);
  EXPECT_GT(json["verified"]["blocks"], 0);
  EXPECT_EQ(json["verified"]["problems"], Json::array());

  const std::string shard = Path("run/step_00000001/optimizer_00000.safetensors");
  std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put(0x55);
  file.close();
  EXPECT_EQ(Fathom("inspect " + Path("run")).status, 0);
  const Result damaged = Fathom("inspect " + Path("run") + " --verify");
  EXPECT_EQ(damaged.status, 1) << damaged.output;
  EXPECT_NE(damaged.output.find(shard + " is damaged"), std::string::npos) << damaged.output;
  const Result resumed = Fathom("train " + Toy("toy_xmod", "--set train.steps=2 --resume"));
  EXPECT_EQ(resumed.status, 1) << resumed.output;
  EXPECT_NE(resumed.output.find("an older checkpoint when LATEST in " + Path("run")),
            std::string::npos)
      << resumed.output;
  for (const std::string& arguments :
       {Path("run") + " --set train.steps=2", std::string("launch/jobs/toy_xmod.txtpb --verify"),
        Path("data")}) {
    const Result refused = Fathom("inspect " + arguments);
    EXPECT_EQ(refused.status, 2) << refused.output;
    EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
  }
}

// A run converted to another layout, and to that of one rank again, goes on to the same bits.
TEST_F(CommandLine, ConvertsARunToAnotherLayout) {
  const std::string toy = Toy("toy_moe", "--set checkpoint.every=2 --set train.steps=4");
  ASSERT_EQ(Fathom("train " + toy).status, 0);
  const std::string half = Path("run") + "/step_00000002 ";
  const Result two =
      Fathom("convert " + half + Path("two") + " --layout tensor=2,expert=2 --layout pipeline=2");
  ASSERT_EQ(two.status, 0) << two.output;
  EXPECT_NE(two.output.find("pipeline 2 x data 1 x context 1 x tensor 2 = 4"), std::string::npos)
      << two.output;
  const Json json = Json::parse(Fathom("inspect " + Path("two") + " --json --verify").output);
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["mesh"]["tensor"], 2);
  EXPECT_EQ(json["files"].size(), 8);
  EXPECT_EQ(json["verified"]["problems"], Json::array());
  EXPECT_EQ(Fathom("compare " + half + Path("two")).status, 0);

  ASSERT_EQ(Fathom("convert " + Path("two") + " " + Path("one") +
                   " --layout tensor=1,expert=1,pipeline=1")
                .status,
            0);
  const Result resumed = Fathom("train " + toy + " --resume --set train.output=" + Path("one"));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_NE(resumed.output.find("resumed from " + Path("one")), std::string::npos)
      << resumed.output;
  const Result same = Fathom("compare " + Path("run") + " " + Path("one") + " --rtol 0");
  EXPECT_EQ(same.status, 0) << same.output;

  const Result start = Fathom("convert " + Path("two") + " " + Path("start") +
                              " --layout tensor=1,expert=1 --weights-only --dtype bf16");
  ASSERT_EQ(start.status, 0) << start.output;
  EXPECT_EQ(
      Fathom("train " + Toy("toy_moe", "--set train.steps=1 --set train.output=" + Path("started") +
                                           " --set train.init_from=" + Path("start")))
          .status,
      0);
  const Result alone =
      Fathom("train " + Toy("toy_moe", "--resume --set train.output=" + Path("start")));
  EXPECT_EQ(alone.status, 2) << alone.output;
  EXPECT_NE(alone.output.find("holds weights alone"), std::string::npos) << alone.output;
  for (const char* arguments : {" --layout \" , \"", " --layout tensor=3", " --layout colour=2",
                                " --layout tensor=2 --dtype bf16",
                                " --layout tensor=2 --format huggingface", " --weights-only"}) {
    const Result refused = Fathom("convert " + Path("run") + " " + Path("none") + arguments);
    EXPECT_EQ(refused.status, 2) << arguments << ": " << refused.output;
    EXPECT_EQ(std::count(refused.output.begin(), refused.output.end(), '\n'), 1) << refused.output;
    EXPECT_FALSE(std::filesystem::exists(Path("none"))) << arguments;
  }
}

// A limit on the size of files is reported as a full disk is.
TEST_F(CommandLine, AFileThatMayNotGrowIsAFailedSave) {
  ASSERT_EQ(Fathom("train " + Toy("toy_dense", "--set train.steps=1")).status, 0);
  const Result run =
      Shell("ulimit -f 600; launch/fathom train " +
            Toy("toy_dense", "--set train.steps=3 --set checkpoint.every=1 --set train.output=" +
                                 Path("limited")));
  EXPECT_EQ(run.status, 1) << run.output;
  for (const char* part : {"could not be saved: cannot write to ", "File too large",
                           "; the run goes on", "step 3, the last one, could not be saved"}) {
    EXPECT_NE(run.output.find(part), std::string::npos) << part << " in " << run.output;
  }
}

TEST_F(CommandLine, PreparesTokens) {
  std::ofstream(Path("text.txt")) << "two words";
  const Result result =
      Fathom("prepare --tokenizer bytes --output " + Path("out") + " " + Path("text.txt"));
  ASSERT_EQ(result.status, 0) << result.output;
  const auto file = TokenFile::Open(PosixFileSystem(), Path("out"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tokens(), 10);
  std::vector<int32_t> tokens(10);
  (*file)->Read(0, 10, tokens.data());
  EXPECT_EQ(tokens[0], 't');
  EXPECT_EQ(tokens[9], 256);
}

}  // namespace
}  // namespace fathom
