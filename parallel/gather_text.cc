#include "parallel/gather_text.h"

#include <cstdint>
#include <cstring>
#include <utility>

#include "core/buffer.h"
#include "core/status.h"
#include "parallel/counts.h"
#include "parallel/keep_buffer.h"

namespace fathom {
namespace {

// Every rank's words, one after the other: counts[rank] each.
absl::StatusOr<std::vector<int32_t>> AllGatherWords(Communicator& world, Stream& stream,
                                                    const std::vector<int32_t>& words,
                                                    const std::vector<int64_t>& counts) {
  const auto own = static_cast<int64_t>(words.size());
  const int64_t total = Offsets(counts).back();
  FATHOM_ASSIGN_OR_RETURN(Buffer in, Buffer::Allocate(stream.device(), own * sizeof(int32_t)));
  FATHOM_ASSIGN_OR_RETURN(Buffer out, Buffer::Allocate(stream.device(), total * sizeof(int32_t)));
  const Tensor input = in.View(0, DType::kInt32, {own});
  const Tensor output = out.View(0, DType::kInt32, {total});
  stream.CopyToDevice(words.data(), input);
  absl::Status status = stream.Synchronize();
  if (status.ok()) status = world.AllGather(input, output, stream, counts).Wait();
  if (!status.ok()) {
    KeepForEver(std::move(in));
    KeepForEver(std::move(out));
    return status;
  }
  std::vector<int32_t> all(total);
  stream.CopyToHost(output, all.data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  return all;
}

// One word more than is full, so that there is always one.
int64_t WordsFor(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(int32_t)) + 1; }

}  // namespace

absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& world, Stream& stream,
                                                       const std::string& text) {
  const auto bytes = static_cast<int32_t>(text.size());
  FATHOM_ASSIGN_OR_RETURN(
      const std::vector<int32_t> lengths,
      AllGatherWords(world, stream, {bytes}, std::vector<int64_t>(world.size(), 1)));
  std::vector<int64_t> counts;
  for (const int32_t length : lengths) counts.push_back(WordsFor(length));
  std::vector<int32_t> words(WordsFor(bytes));
  std::memcpy(words.data(), text.data(), text.size());
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int32_t> all,
                          AllGatherWords(world, stream, words, counts));
  const std::vector<int64_t> offsets = Offsets(counts);
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + offsets[rank]), lengths[rank]);
  }
  return texts;
}

}  // namespace fathom
