#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "runtime/data/token_source.h"

namespace fathom {

// Which sample comes i-th in an epoch of `count` samples: a permutation of 0 to count - 1, keyed by
// (seed, epoch), computed without a table. 0 <= i < count.
int64_t SampleId(uint64_t seed, uint64_t epoch, int64_t i, int64_t count);

enum class SampleOrder {
  kShuffled,    // by SampleId, another order each epoch: training
  kSequential,  // as they lie in the file: validation
};

// Cuts a token source into samples that start every L tokens and hold L + 1: the inputs are the
// first L, the labels the last L. The order is a pure function of (seed, epoch, consumed
// sequences), so a number of consumed sequences is all that a checkpoint needs. Thread-safe.
class Sampler {
 public:
  // `source` must outlive the sampler; `vocabulary` is the model's. InvalidArgument when the source
  // has fewer than L + 1 tokens.
  static absl::StatusOr<Sampler> Create(const TokenSource& source, int64_t sequence_length,
                                        int64_t vocabulary, SampleOrder order, uint64_t seed);

  // Samples per epoch: floor((tokens - 1) / L).
  int64_t count() const { return count_; }
  // The sample that is consumed after `consumed_sequences` others, epoch after epoch.
  int64_t SampleAt(int64_t consumed_sequences) const;

  // Samples `consumed_sequences` to consumed_sequences + B - 1.
  //   inputs [B, L], labels [B, L]: written; labels[b, t] is the token after inputs[b, t]
  // OutOfRange, naming file and offset, for a token outside the model's vocabulary.
  absl::Status Fill(int64_t consumed_sequences, int64_t sequences, int32_t* inputs,
                    int32_t* labels) const;

 private:
  Sampler(const TokenSource& source, int64_t sequence_length, int64_t vocabulary, SampleOrder order,
          uint64_t seed, int64_t count)
      : source_(&source),
        sequence_length_(sequence_length),
        vocabulary_(vocabulary),
        order_(order),
        seed_(seed),
        count_(count) {}

  const TokenSource* source_;
  int64_t sequence_length_;
  int64_t vocabulary_;
  SampleOrder order_;
  uint64_t seed_;
  int64_t count_;
};

}  // namespace fathom
