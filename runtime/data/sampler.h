#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/blend_order.h"
#include "runtime/data/token_source.h"
#include "runtime/model/micro_batch.h"

namespace fathom {

// Which sample comes i-th in an epoch of `count` samples: a permutation of 0 to count - 1, keyed by
// (seed, epoch), computed without a table. 0 <= i < count.
int64_t SampleId(uint64_t seed, uint64_t epoch, int64_t i, int64_t count);

enum class SampleOrder {
  kShuffled,    // by SampleId, another order each epoch: training
  kSequential,  // as they lie in the file: validation
};

// A source of a blend. It must outlive its sampler.
struct WeightedSource {
  const TokenSource* source;
  double weight;  // of the samples this source gives weight / (sum of weights); see BlendOrder
};

// Cuts token sources into samples that start every L tokens and hold L + 1: the inputs are the
// first L, the labels the last L. The order is a pure function of (seed, consumed sequences), so a
// number of consumed sequences is all that a checkpoint needs. Thread-safe.
class Sampler {
 public:
  // `source` must outlive the sampler; `vocabulary` is the model's. InvalidArgument when the source
  // has fewer than L + 1 tokens.
  static absl::StatusOr<Sampler> Create(const TokenSource& source, int64_t sequence_length,
                                        int64_t vocabulary, SampleOrder order, uint64_t seed);
  // Several sources, taken in turns by BlendOrder, each shuffled by itself, epoch after epoch of
  // its own. One source gives the order of Create. InvalidArgument for weights that cannot be used.
  static absl::StatusOr<Sampler> CreateBlend(const std::vector<WeightedSource>& sources,
                                             int64_t sequence_length, int64_t vocabulary,
                                             uint64_t seed);

  struct Place {
    int64_t source;
    int64_t sample;  // it starts at token sample * L
  };
  // Samples per epoch, floor((tokens - 1) / L); of a blend, those of all sources together.
  int64_t count() const;
  // The sample that is consumed after `consumed_sequences` others, epoch after epoch.
  Place PlaceOf(int64_t consumed_sequences) const;

  // Samples `consumed_sequences` to consumed_sequences + B - 1.
  //   inputs [B, L], labels [B, L]: written; labels[b, t] is the token after inputs[b, t]
  // OutOfRange, naming file and offset, for a token outside the model's vocabulary.
  absl::Status Fill(int64_t consumed_sequences, int64_t sequences, int32_t* inputs,
                    int32_t* labels) const;

  // From now on batches and counts are of documents that do not see each other: see FillBatch.
  // InvalidArgument for a source that does not know its documents.
  absl::Status SeparateDocuments();
  // Fills a batch of B = batch->sequences sequences of L tokens, all of it. With separate documents
  // each document, and what a sequence has of one, is a segment of its own with positions from 0,
  // and the label across a border, which is in another document, is -100: not counted.
  absl::Status FillBatch(int64_t consumed_sequences, HostBatch* batch) const;
  // The labels that count in those samples, without reading their tokens.
  int64_t CountLabels(int64_t consumed_sequences, int64_t sequences) const;
  // The query-key pairs of causal attention within their segments, the sum of l(l+1)/2 over the
  // segments' lengths l, without reading their tokens.
  double CountPairs(int64_t consumed_sequences, int64_t sequences) const;

 private:
  struct Part {
    const TokenSource* source;
    int64_t count;  // samples per epoch
    uint64_t seed;
  };

  Sampler(int64_t sequence_length, int64_t vocabulary, SampleOrder order)
      : sequence_length_(sequence_length), vocabulary_(vocabulary), order_(order) {}
  absl::Status AddPart(const TokenSource& source, uint64_t seed);
  std::vector<int64_t> Borders(const Place& place) const;

  int64_t sequence_length_;
  int64_t vocabulary_;
  SampleOrder order_;
  std::vector<Part> parts_;
  std::shared_ptr<const BlendOrder> blend_;  // nullptr: there is one part
  bool separate_documents_ = false;
};

}  // namespace fathom
