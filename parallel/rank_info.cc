#include "parallel/rank_info.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "parallel/gather_text.h"

namespace fathom {
namespace {

// Fields stand behind one another with a zero byte between them: host, cores, threads, settings.
// No name and no value of the environment has a zero byte.
constexpr char kSeparator = '\0';

std::string ToText(const RankInfo& info) {
  std::vector<std::string> fields = {info.host, ShortList(info.cores),
                                     std::to_string(info.threads)};
  fields.insert(fields.end(), info.settings.begin(), info.settings.end());
  return absl::StrJoin(fields, std::string(1, kSeparator));
}

absl::StatusOr<RankInfo> FromText(const std::string& text) {
  const std::vector<std::string> fields = absl::StrSplit(text, kSeparator);
  RankInfo info;
  if (fields.size() < 3 || !absl::SimpleAtoi(fields[2], &info.threads)) {
    return absl::DataLossError(absl::StrCat("a rank described itself as \"", text, "\""));
  }
  info.host = fields[0];
  FATHOM_ASSIGN_OR_RETURN(info.cores, ParseShortList(fields[1]));
  info.settings.assign(fields.begin() + 3, fields.end());
  return info;
}

}  // namespace

std::string ShortList(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (size_t first = 0, end = 0; first < numbers.size(); first = end) {
    end = first + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end == first + 1 ? std::to_string(numbers[first])
                                     : absl::StrCat(numbers[first], "-", numbers[end - 1]));
  }
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<std::vector<int>> ParseShortList(const std::string& text) {
  std::vector<int> numbers;
  if (text.empty()) return numbers;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    const bool good = absl::SimpleAtoi(ends.first, &first) &&
                      absl::SimpleAtoi(part == ends.first ? ends.first : ends.second, &last);
    if (!good || first < 0 || last < first || (!numbers.empty() && first <= numbers.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is not a list of ascending numbers like \"0-3,8\""));
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<RankInfo>> GatherRankInfo(Communicator& world, Stream& stream,
                                                     const RankInfo& own) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          AllGatherText(world, stream, ToText(own)));
  std::vector<RankInfo> ranks;
  for (const std::string& text : texts) {
    FATHOM_ASSIGN_OR_RETURN(RankInfo info, FromText(text));
    ranks.push_back(std::move(info));
  }
  return ranks;
}

}  // namespace fathom
