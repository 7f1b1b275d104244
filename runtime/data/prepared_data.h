#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"

namespace fathom {

// The token files that a job trains on.
struct PreparedData {
  std::string train;       // empty: the job has a blend
  std::string validation;  // empty: there is no validation
};

using LogFunction = std::function<void(const std::string&)>;

// Finds or makes a job's token files. `config.train` and `config.validation` are taken as they are
// and must exist. Without `train` and `blend`, the first of `config.text` that exists is prepared
// in `config.directory`: of at most text_bytes bytes, the first (1 - validation_fraction) for
// training and the rest for validation (unless `config.validation` names another file). The names
// hold a hash of the text and of all that shapes the tokens, so files of an earlier call are used
// again. Several processes may call at once. `log` is told of a text that is missing and of files
// made.
absl::StatusOr<PreparedData> EnsurePrepared(FileSystem& files, const DataConfig& config,
                                            const LogFunction& log);

}  // namespace fathom
