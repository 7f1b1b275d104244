// A byte trigram with Witten-Bell smoothing, as the baseline of the quickstart: it counts the first
// bytes of the training tokens, and is scored on the same validation tokens as the run.
//
// usage: trigram_baseline TRAIN.tokens VALIDATION.tokens [RUN/metrics.jsonl]

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/file.h"
#include "nlohmann/json.hpp"
#include "runtime/data/token_file.h"

namespace fathom {
namespace {

constexpr int64_t kVocabulary = 257;
constexpr int64_t kTrainTokens = 20'000'000;

// Counts of n-grams for n = 1, 2, 3, and Witten and Bell's interpolation ("The zero-frequency
// problem", 1991, method C): with c(h w) counts after history h, c(h) their sum and t(h) how many
// different w were seen,
//   p(w | h) = (c(h w) + t(h) * p(w | shorter h)) / (c(h) + t(h)).
class Trigram {
 public:
  Trigram() : counts_{Counts(1), Counts(kVocabulary), Counts(kVocabulary * kVocabulary)} {}

  void Count(const std::vector<int32_t>& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (size_t order = 0; order < 3 && order <= i; ++order) {
        counts_[order].Add(History(tokens, i, order), tokens[i]);
      }
    }
  }

  // Mean of -log p in nats over all tokens but the first two.
  double Loss(const std::vector<int32_t>& tokens) const {
    double sum = 0;
    for (size_t i = 2; i < tokens.size(); ++i) {
      double p = 1.0 / kVocabulary;
      for (size_t order = 0; order < 3; ++order) {
        p = counts_[order].Interpolate(History(tokens, i, order), tokens[i], p);
      }
      sum -= std::log(p);
    }
    return sum / static_cast<double>(tokens.size() - 2);
  }

 private:
  class Counts {
   public:
    explicit Counts(int64_t histories)
        : counts_(histories * kVocabulary), totals_(histories), kinds_(histories) {}
    void Add(int64_t history, int32_t token) {
      uint32_t& count = counts_[history * kVocabulary + token];
      kinds_[history] += count == 0;
      ++count;
      ++totals_[history];
    }
    double Interpolate(int64_t history, int32_t token, double shorter) const {
      if (totals_[history] == 0) return shorter;
      const double kinds = kinds_[history];
      return (counts_[history * kVocabulary + token] + kinds * shorter) /
             (totals_[history] + kinds);
    }

   private:
    std::vector<uint32_t> counts_;  // [history, token]
    std::vector<uint32_t> totals_;
    std::vector<uint32_t> kinds_;
  };

  static int64_t History(const std::vector<int32_t>& tokens, size_t i, size_t order) {
    int64_t history = 0;
    for (size_t back = order; back > 0; --back) history = history * kVocabulary + tokens[i - back];
    return history;
  }

  Counts counts_[3];
};

absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path, int64_t limit) {
  absl::StatusOr<std::unique_ptr<TokenFile>> file = TokenFile::Open(PosixFileSystem(), path);
  if (!file.ok()) return file.status();
  std::vector<int32_t> tokens(std::min(limit, (*file)->tokens()));
  const absl::Status status =
      ReadChecked(**file, 0, static_cast<int64_t>(tokens.size()), kVocabulary, tokens.data());
  if (!status.ok()) return status;
  return tokens;
}

// The last validation of a run under causal routing.
absl::StatusOr<double> LastCausalLoss(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(PosixFileSystem(), path);
  if (!text.ok()) return text.status();
  double last = NAN;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    const auto record = nlohmann::json::parse(text->substr(begin, end - begin), nullptr, false);
    if (!record.is_discarded() && record.value("kind", "") == "validation") {
      last = record["loss_causal"].is_number() ? record["loss_causal"].get<double>() : NAN;
    }
    begin = end + 1;
  }
  return last;
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: trigram_baseline TRAIN.tokens VALIDATION.tokens [RUN/metrics.jsonl]\n");
    return 2;
  }
  const auto train = ReadTokens(argv[1], kTrainTokens);
  const auto validation = ReadTokens(argv[2], INT64_MAX);
  for (const absl::Status& status : {train.status(), validation.status()}) {
    if (!status.ok()) {
      std::fprintf(stderr, "trigram_baseline: %s\n", std::string(status.message()).c_str());
      return 1;
    }
  }
  auto trigram = std::make_unique<Trigram>();
  trigram->Count(*train);
  std::printf("byte trigram, Witten-Bell, %.1f MB: %.4f nats per byte\n",
              static_cast<double>(train->size()) / 1e6, trigram->Loss(*validation));
  if (argc > 3) {
    const absl::StatusOr<double> run = LastCausalLoss(argv[3]);
    if (!run.ok()) {
      std::fprintf(stderr, "trigram_baseline: %s\n", std::string(run.status().message()).c_str());
      return 1;
    }
    std::printf("the run, causal routing:           %.4f nats per byte\n", *run);
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) { return fathom::Main(argc, argv); }
