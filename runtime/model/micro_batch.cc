#include "runtime/model/micro_batch.h"

namespace fathom {

HostBatch HostBatch::WholeSequences(int64_t sequences, int64_t length) {
  HostBatch batch{.sequences = sequences, .length = length};
  batch.tokens.resize(sequences * length);
  batch.labels.resize(sequences * length);
  batch.positions.resize(sequences * length);
  for (int64_t i = 0; i < sequences * length; ++i) batch.positions[i] = i % length;
  for (int64_t i = 0; i <= sequences; ++i) batch.segments.push_back(i * length);
  return batch;
}

MicroBatch Upload(const HostBatch& host, Stream& stream, Arena& arena) {
  const auto copy = [&](const std::vector<int32_t>& values) {
    const Tensor tensor = arena.New(DType::kInt32, {static_cast<int64_t>(values.size())});
    stream.CopyToDevice(values.data(), tensor);
    return tensor;
  };
  MicroBatch batch{.sequences = host.sequences, .length = host.length};
  batch.tokens = copy(host.tokens);
  batch.labels = copy(host.labels);
  batch.positions = copy(host.positions);
  batch.segments = copy(host.segments);
  for (size_t s = 0; s + 1 < host.segments.size(); ++s) {
    const double length = host.segments[s + 1] - host.segments[s];
    batch.pairs += length * (length + 1) / 2;
  }
  return batch;
}

}  // namespace fathom
