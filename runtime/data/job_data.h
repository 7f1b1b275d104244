#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/data/prepared_data.h"
#include "runtime/data/sampler.h"
#include "runtime/data/token_source.h"

namespace fathom {

// The data of a job, open.
struct JobData {
  std::vector<std::unique_ptr<TokenSource>> sources;  // what the samplers read
  std::unique_ptr<Sampler> train;
  std::unique_ptr<Sampler> validation;  // nullptr: the job has none
  uint64_t tokenizer_hash = 0;          // of the tokens' tokenizer; 0: no file says it
};

// Finds or makes the job's token files (EnsurePrepared), opens them and what is blended of them.
// InvalidArgument when files, or a file and data.tokenizer (where the job sets it), are of
// different tokenizers.
absl::StatusOr<JobData> OpenJobData(FileSystem& files, const Job& job, const LogFunction& log);

// The same, with the validation data alone.
absl::StatusOr<JobData> OpenValidationData(FileSystem& files, const Job& job,
                                           const LogFunction& log);

// What a checkpoint's integers say of the tokenizer of the data: put there when it is known, and
// compared with data that is opened later. InvalidArgument, naming `checkpoint`, when it is
// another.
void RecordTokenizer(const JobData& data, std::map<std::string, int64_t>* integers);
absl::Status CheckRecordedTokenizer(const std::map<std::string, int64_t>& integers,
                                    const std::string& checkpoint, const JobData& data);

}  // namespace fathom
