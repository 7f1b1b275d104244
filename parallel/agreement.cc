#include "parallel/agreement.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "parallel/gather_text.h"

namespace fathom {

absl::StatusOr<std::string> FromFirstRank(Communicator& world, Stream& stream,
                                          const absl::StatusOr<std::string>& mine) {
  const bool first = world.rank() == 0;
  std::string text;
  if (first) text = mine.ok() ? *mine : std::string(mine.status().message());
  int64_t header[] = {static_cast<int64_t>(mine.status().code()),
                      static_cast<int64_t>(text.size())};
  FATHOM_RETURN_IF_ERROR(
      world.Broadcast(Tensor(header, DType::kInt64, {2}), 0, stream).Wait(stream));
  // Characters travel as whole words.
  const int64_t words = (header[1] + 3) / 4;
  std::vector<int32_t> buffer(words + 1);
  if (first) std::memcpy(buffer.data(), text.data(), text.size());
  if (words > 0) {
    FATHOM_RETURN_IF_ERROR(
        world.Broadcast(Tensor(buffer.data(), DType::kInt32, {words}), 0, stream).Wait(stream));
  }
  text.assign(reinterpret_cast<const char*>(buffer.data()), header[1]);
  if (header[0] == static_cast<int64_t>(absl::StatusCode::kOk)) return text;
  if (first) return mine;
  return absl::AbortedError(absl::StrCat("rank 0 cannot go on: ", text));
}

absl::StatusOr<Agreement> AgreeOverRanks(Communicator& world, Stream& stream,
                                         const absl::StatusOr<std::string>& mine) {
  const std::string text =
      mine.ok() ? absl::StrCat("+", *mine) : absl::StrCat("-", mine.status().message());
  Agreement agreement;
  FATHOM_ASSIGN_OR_RETURN(agreement.texts, AllGatherText(world, stream, text));
  for (int rank = 0; rank < world.size(); ++rank) {
    std::string& of_rank = agreement.texts[rank];
    const bool failed = of_rank[0] == '-';
    of_rank.erase(0, 1);
    if (!failed || !agreement.status.ok()) continue;
    agreement.status = rank == world.rank()
                           ? mine.status()
                           : absl::AbortedError(absl::StrCat("rank ", rank, ": ", of_rank));
  }
  return agreement;
}

}  // namespace fathom
