#include "launch/arguments.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fathom {
namespace {

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::Status UnknownFlag(const std::string& flag, std::vector<std::string> known) {
  known.push_back("help");
  std::sort(known.begin(), known.end());
  return absl::InvalidArgumentError(
      absl::StrCat("there is no flag --", flag, "; there are --", absl::StrJoin(known, ", --")));
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Parse(int argc, char** argv,
                                           const std::vector<std::string>& value_flags,
                                           const std::vector<std::string>& switches) {
  Arguments arguments;
  bool flags_ended = false;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    if (flags_ended || word == "-" || word.empty() || word[0] != '-') {
      arguments.words_.push_back(word);
      continue;
    }
    if (word == "--") {
      flags_ended = true;
      continue;
    }
    const size_t equals = word.find('=');
    const std::string name = word == "-h"
                                 ? "help"
                                 : word.substr(std::min<size_t>(2, word.size()),
                                               equals == std::string::npos ? equals : equals - 2);
    if (name == "help" || Contains(switches, name)) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
      arguments.values_[name].push_back("");
    } else if (word.rfind("--", 0) == 0 && Contains(value_flags, name)) {
      if (equals == std::string::npos && i + 1 == argc) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value after it"));
      }
      arguments.values_[name].push_back(equals == std::string::npos ? argv[++i]
                                                                    : word.substr(equals + 1));
    } else {
      std::vector<std::string> known = value_flags;
      known.insert(known.end(), switches.begin(), switches.end());
      return UnknownFlag(name, std::move(known));
    }
  }
  return arguments;
}

std::string Arguments::Value(const std::string& flag, const std::string& otherwise) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? otherwise : found->second.back();
}

std::vector<std::string> Arguments::Values(const std::string& flag) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? std::vector<std::string>() : found->second;
}

int Fail(const std::string& command, const absl::Status& status) {
  std::fflush(stdout);  // what was said before comes before
  std::fprintf(stderr, "fathom %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  const bool refused = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                       absl::IsAlreadyExists(status) || absl::IsUnimplemented(status);
  return refused ? kRefused : kRunFailed;
}

}  // namespace fathom
