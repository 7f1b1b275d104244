#include "runtime/data/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "core/check.h"
#include "core/random.h"
#include "core/status.h"

namespace fathom {
namespace {

// Luby and Rackoff need 4 rounds of random functions; small domains mix better with more.
constexpr uint32_t kRounds = 8;

// A permutation of 0 to 2^(2 * half_bits) - 1: a Feistel network whose round function is Philox.
uint64_t Feistel(uint64_t value, int half_bits, uint64_t seed, uint64_t epoch) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed),
                                       static_cast<uint32_t>(seed >> 32)};
  uint64_t left = value >> half_bits;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t mixed =
        Philox4x32({static_cast<uint32_t>(right), round, static_cast<uint32_t>(epoch),
                    static_cast<uint32_t>(epoch >> 32)},
                   key)[0];
    const uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

int64_t SampleId(uint64_t seed, uint64_t epoch, int64_t i, int64_t count) {
  FATHOM_CHECK(0 <= i && i < count);
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  const int half_bits = std::max(1, (bits + 1) / 2);
  // The network permutes up to four times as many values as there are samples. Walking its cycle
  // until a sample is met gives a permutation of the samples alone.
  uint64_t value = i;
  do {
    value = Feistel(value, half_bits, seed, epoch);
  } while (value >= static_cast<uint64_t>(count));
  return value;
}

absl::Status Sampler::AddPart(const TokenSource& source, uint64_t seed) {
  const int64_t count = (source.tokens() - 1) / sequence_length_;
  if (count < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path(), " has ", source.tokens(), " tokens, too few for one sequence of ",
        sequence_length_, " tokens and the label after it"));
  }
  parts_.push_back({&source, count, seed});
  return absl::OkStatus();
}

absl::StatusOr<Sampler> Sampler::Create(const TokenSource& source, int64_t sequence_length,
                                        int64_t vocabulary, SampleOrder order, uint64_t seed) {
  FATHOM_CHECK(sequence_length > 0 && vocabulary > 0);
  Sampler sampler(sequence_length, vocabulary, order);
  FATHOM_RETURN_IF_ERROR(sampler.AddPart(source, seed));
  return sampler;
}

absl::StatusOr<Sampler> Sampler::CreateBlend(const std::vector<WeightedSource>& sources,
                                             int64_t sequence_length, int64_t vocabulary,
                                             uint64_t seed) {
  FATHOM_CHECK(sequence_length > 0 && vocabulary > 0);
  Sampler sampler(sequence_length, vocabulary, SampleOrder::kShuffled);
  std::vector<double> weights;
  for (const WeightedSource& part : sources) {
    // Each source's seed differs, so that files of one length are not read in step.
    FATHOM_RETURN_IF_ERROR(
        sampler.AddPart(*part.source, seed + weights.size() * 0x9e3779b97f4a7c15u));
    weights.push_back(part.weight);
  }
  FATHOM_ASSIGN_OR_RETURN(BlendOrder blend, BlendOrder::Create(weights));
  sampler.blend_ = std::make_shared<const BlendOrder>(std::move(blend));
  return sampler;
}

int64_t Sampler::count() const {
  int64_t count = 0;
  for (const Part& part : parts_) count += part.count;
  return count;
}

Sampler::Place Sampler::PlaceOf(int64_t consumed_sequences) const {
  FATHOM_CHECK(consumed_sequences >= 0);
  BlendOrder::Place place = {0, consumed_sequences};
  if (blend_ != nullptr) place = blend_->At(consumed_sequences);
  const Part& part = parts_[place.source];
  const int64_t i = place.ordinal % part.count;
  if (order_ == SampleOrder::kSequential) return {place.source, i};
  return {place.source, SampleId(part.seed, place.ordinal / part.count, i, part.count)};
}

absl::Status Sampler::Fill(int64_t consumed_sequences, int64_t sequences, int32_t* inputs,
                           int32_t* labels) const {
  const int64_t L = sequence_length_;
  std::vector<int32_t> tokens(L + 1);
  for (int64_t b = 0; b < sequences; ++b) {
    const Place place = PlaceOf(consumed_sequences + b);
    FATHOM_RETURN_IF_ERROR(ReadChecked(*parts_[place.source].source, place.sample * L, L + 1,
                                       vocabulary_, tokens.data()));
    std::copy_n(tokens.begin(), L, inputs + b * L);
    std::copy_n(tokens.begin() + 1, L, labels + b * L);
  }
  return absl::OkStatus();
}

absl::Status Sampler::SeparateDocuments() {
  for (const Part& part : parts_) {
    if (part.source->knows_documents()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(part.source->path(),
                     " does not record where documents end, which data.document_mask needs: "
                     "prepare the tokens again, or switch it off"));
  }
  separate_documents_ = true;
  return absl::OkStatus();
}

// Where documents end inside a sample: the numbers of its tokens, 1 to L, that begin another one.
std::vector<int64_t> Sampler::Borders(const Place& place) const {
  std::vector<int64_t> borders;
  if (!separate_documents_) return borders;
  const TokenSource& source = *parts_[place.source].source;
  const int64_t begin = place.sample * sequence_length_;
  // The first document that ends behind the sample's first token.
  int64_t document = 0, behind = source.documents();
  while (document < behind) {
    const int64_t middle = (document + behind) / 2;
    if (source.DocumentEnd(middle) > begin) {
      behind = middle;
    } else {
      document = middle + 1;
    }
  }
  for (; document < source.documents(); ++document) {
    const int64_t border = source.DocumentEnd(document) - begin;
    if (border > sequence_length_) break;
    if (borders.empty() || border > borders.back()) borders.push_back(border);
  }
  return borders;
}

absl::Status Sampler::FillBatch(int64_t consumed_sequences, HostBatch* batch) const {
  constexpr int32_t kNotCounted = -100;
  const int64_t L = sequence_length_;
  FATHOM_CHECK_EQ(batch->length, L);
  FATHOM_RETURN_IF_ERROR(
      Fill(consumed_sequences, batch->sequences, batch->tokens.data(), batch->labels.data()));
  batch->segments.clear();
  for (int64_t b = 0; b < batch->sequences; ++b) {
    int64_t begin = 0;
    const auto end_segment = [&](int64_t end) {
      batch->segments.push_back(static_cast<int32_t>(b * L + begin));
      for (int64_t t = begin; t < end; ++t) batch->positions[b * L + t] = t - begin;
      begin = end;
    };
    for (const int64_t border : Borders(PlaceOf(consumed_sequences + b))) {
      batch->labels[b * L + border - 1] = kNotCounted;
      end_segment(border);
    }
    if (begin < L) end_segment(L);
  }
  batch->segments.push_back(static_cast<int32_t>(batch->sequences * L));
  return absl::OkStatus();
}

int64_t Sampler::CountLabels(int64_t consumed_sequences, int64_t sequences) const {
  int64_t labels = sequences * sequence_length_;
  for (int64_t b = 0; b < sequences; ++b) {
    labels -= static_cast<int64_t>(Borders(PlaceOf(consumed_sequences + b)).size());
  }
  return labels;
}

double Sampler::CountPairs(int64_t consumed_sequences, int64_t sequences) const {
  double pairs = 0;
  for (int64_t b = 0; b < sequences; ++b) {
    std::vector<int64_t> borders = Borders(PlaceOf(consumed_sequences + b));
    borders.push_back(sequence_length_);
    int64_t begin = 0;
    for (const int64_t border : borders) {
      const double length = static_cast<double>(border - begin);
      pairs += length * (length + 1) / 2;
      begin = border;
    }
  }
  return pairs;
}

}  // namespace fathom
