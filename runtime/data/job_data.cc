#include "runtime/data/job_data.h"

#include <string>
#include <utility>

#include "core/status.h"
#include "runtime/checksum.h"
#include "runtime/data/open_tokens.h"
#include "runtime/data/tokenizer.h"

namespace fathom {
namespace {

// Opens files one after another, and sees that they are of one tokenizer.
class Opener {
 public:
  Opener(FileSystem& files, const Job& job, JobData* data)
      : files_(files), job_(job), data_(data) {}

  absl::Status ExpectTokenizer() {
    if (!job_.data.tokenizer_is_set) return absl::OkStatus();
    FATHOM_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(job_.data.tokenizer, files_));
    Expect(tokenizer->hash(), "data.tokenizer");
    return absl::OkStatus();
  }

  absl::StatusOr<const TokenSource*> Open(const std::string& path) {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> source, OpenTokens(files_, path));
    FATHOM_RETURN_IF_ERROR(CheckTokenizer(*source, data_->tokenizer_hash, whose_));
    if (data_->tokenizer_hash == 0) Expect(source->tokenizer_hash(), source->path());
    data_->sources.push_back(std::move(source));
    return data_->sources.back().get();
  }

  absl::Status OpenTrain(const PreparedData& prepared) {
    const int64_t length = job_.train.sequence_length, vocabulary = job_.model.vocabulary;
    if (job_.data.blend.empty()) {
      FATHOM_ASSIGN_OR_RETURN(const TokenSource* source, Open(prepared.train));
      FATHOM_ASSIGN_OR_RETURN(
          const Sampler sampler,
          Sampler::Create(*source, length, vocabulary, SampleOrder::kShuffled, job_.data.seed));
      data_->train = std::make_unique<Sampler>(sampler);
      return absl::OkStatus();
    }
    std::vector<WeightedSource> sources;
    for (const BlendPart& part : job_.data.blend) {
      FATHOM_ASSIGN_OR_RETURN(const TokenSource* source, Open(part.path));
      sources.push_back({source, part.weight});
    }
    const auto sampler = Sampler::CreateBlend(sources, length, vocabulary, job_.data.seed);
    if (!sampler.ok()) {
      return absl::Status(sampler.status().code(),
                          absl::StrCat("data.blend: ", sampler.status().message()));
    }
    data_->train = std::make_unique<Sampler>(*sampler);
    return absl::OkStatus();
  }

  absl::Status OpenValidation(const PreparedData& prepared) {
    if (prepared.validation.empty()) return absl::OkStatus();
    FATHOM_ASSIGN_OR_RETURN(const TokenSource* source, Open(prepared.validation));
    FATHOM_ASSIGN_OR_RETURN(
        const Sampler sampler,
        Sampler::Create(*source, job_.train.sequence_length, job_.model.vocabulary,
                        SampleOrder::kSequential, /*seed=*/0));
    data_->validation = std::make_unique<Sampler>(sampler);
    return absl::OkStatus();
  }

 private:
  void Expect(uint64_t hash, const std::string& whose) {
    data_->tokenizer_hash = hash;
    whose_ = whose;
  }

  FileSystem& files_;
  const Job& job_;
  JobData* data_;
  std::string whose_;  // who speaks of the hash
};

absl::StatusOr<JobData> OpenData(FileSystem& files, const Job& job, bool train,
                                 const LogFunction& log) {
  FATHOM_ASSIGN_OR_RETURN(const PreparedData prepared, EnsurePrepared(files, job.data, log));
  JobData data;
  Opener opener(files, job, &data);
  FATHOM_RETURN_IF_ERROR(opener.ExpectTokenizer());
  if (train) FATHOM_RETURN_IF_ERROR(opener.OpenTrain(prepared));
  FATHOM_RETURN_IF_ERROR(opener.OpenValidation(prepared));
  for (Sampler* sampler : {data.train.get(), data.validation.get()}) {
    if (sampler == nullptr || !job.data.document_mask) continue;
    FATHOM_RETURN_IF_ERROR(sampler->SeparateDocuments());
  }
  return data;
}

constexpr char kTokenizerHash[] = "tokenizer_hash";

}  // namespace

absl::StatusOr<JobData> OpenJobData(FileSystem& files, const Job& job, const LogFunction& log) {
  return OpenData(files, job, /*train=*/true, log);
}

absl::StatusOr<JobData> OpenValidationData(FileSystem& files, const Job& job,
                                           const LogFunction& log) {
  return OpenData(files, job, /*train=*/false, log);
}

void RecordTokenizer(const JobData& data, std::map<std::string, int64_t>* integers) {
  if (data.tokenizer_hash == 0) return;
  (*integers)[kTokenizerHash] = static_cast<int64_t>(data.tokenizer_hash);
}

absl::Status CheckRecordedTokenizer(const std::map<std::string, int64_t>& integers,
                                    const std::string& checkpoint, const JobData& data) {
  const auto found = integers.find(kTokenizerHash);
  if (found == integers.end() || data.tokenizer_hash == 0) return absl::OkStatus();
  const auto recorded = static_cast<uint64_t>(found->second);
  if (recorded == data.tokenizer_hash) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(checkpoint, " was trained on tokens of another tokenizer than the job's data: ",
                   "their hashes are ", Hex(recorded), " and ", Hex(data.tokenizer_hash)));
}

}  // namespace fathom
