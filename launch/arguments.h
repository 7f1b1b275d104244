#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fathom {

// The exit statuses that scripts may lean on. A clean stop by a signal is 128 + the signal.
enum ExitStatus { kDone = 0, kRunFailed = 1, kRefused = 2 };

// The words after a subcommand, split into flags and the rest.
class Arguments {
 public:
  // `value_flags` take a value ("--output X" or "--output=X") and may be repeated, `switches` do
  // not; names are without dashes. "--help" and "-h" are always understood. "--" ends the flags,
  // "-" alone is a word. InvalidArgument for any other flag, naming those that exist.
  static absl::StatusOr<Arguments> Parse(int argc, char** argv,
                                         const std::vector<std::string>& value_flags,
                                         const std::vector<std::string>& switches);

  const std::vector<std::string>& words() const { return words_; }
  bool Has(const std::string& flag) const { return values_.count(flag) > 0; }
  bool help() const { return Has("help"); }
  // The last value given, or `otherwise`.
  std::string Value(const std::string& flag, const std::string& otherwise = "") const;
  // All values given, in order.
  std::vector<std::string> Values(const std::string& flag) const;

 private:
  std::vector<std::string> words_;
  std::map<std::string, std::vector<std::string>> values_;
};

// Prints "fathom COMMAND: message" to standard error; the exit status that `status` stands for:
// InvalidArgument and NotFound of what the user named are kRefused, the rest kRunFailed.
int Fail(const std::string& command, const absl::Status& status);

}  // namespace fathom
