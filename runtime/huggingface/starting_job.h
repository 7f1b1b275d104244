#pragma once

#include <cstdint>
#include <string>

#include "core/job.h"

namespace fathom {

struct StartingJob {
  ModelConfig model;            // its plan has dense layers and mixtures of experts only
  std::string name;             // of the job
  std::string weights;          // the directory to start from
  std::string tokenizer;        // data.tokenizer; empty: left to its default
  std::string about_tokenizer;  // a sentence about it; empty: none
  int64_t sequence_length = 0;
};

// The text of a job file that trains a model from converted weights, with comments for who reads
// it. It names a text beside it that does not exist: what to train on is for the user to say.
std::string MakeStartingJob(const StartingJob& job);

}  // namespace fathom
