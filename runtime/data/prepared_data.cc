#include "runtime/data/prepared_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "core/status.h"
#include "runtime/checksum.h"
#include "runtime/data/input_parts.h"
#include "runtime/data/open_tokens.h"
#include "runtime/data/prepare.h"
#include "runtime/data/text_input.h"
#include "runtime/data/token_file.h"
#include "runtime/data/tokenizer.h"

namespace fathom {
namespace {

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// "PATH is missing", with the Debian package of texts that one brings.
std::string Missing(const std::string& path) {
  constexpr struct {
    const char* file;
    const char* package;
  } kPackages[] = {{"gcide.dict.dz", "dict-gcide"},
                   {"wn.dict.dz", "dict-wn"},
                   {"american-english", "wamerican"},
                   {"words", "wamerican"}};
  for (const auto& [file, package] : kPackages) {
    if (BaseName(path) == file) {
      return absl::StrCat(path, " is missing (Debian: apt-get install ", package, ")");
    }
  }
  return absl::StrCat(path, " is missing");
}

absl::StatusOr<std::string> ChooseText(FileSystem& files, const DataConfig& config,
                                       const LogFunction& log) {
  std::vector<std::string> missing;
  for (const std::string& path : config.text) {
    if (files.Exists(path)) {
      if (IsNamedAsJsonLines(path)) {
        return absl::InvalidArgumentError(
            absl::StrCat("data.text names ", path,
                         ", which holds JSON lines: make a token file of it with `fathom prepare`, "
                         "and name that in data.train"));
      }
      for (const std::string& what : missing) {
        log(absl::StrCat(what, ": training on ", path, " instead"));
      }
      return path;
    }
    missing.push_back(Missing(path));
  }
  if (missing.empty()) {
    return absl::InvalidArgumentError(
        "data.train names no token file and data.text no text, so there is nothing to train on");
  }
  std::string message = "there is no text to train on";
  for (const std::string& what : missing) message += absl::StrCat("; ", what);
  return absl::NotFoundError(
      absl::StrCat(message, "; set data.train to a token file that `fathom prepare` made"));
}

// Decompressed bytes of a text, counted up to `limit`.
absl::StatusOr<int64_t> CountBytes(FileSystem& files, const std::string& path, int64_t limit) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<TextInput> input, TextInput::Open(files, path));
  int64_t bytes = 0;
  while (bytes < limit) {
    FATHOM_ASSIGN_OR_RETURN(const std::string_view piece, input->Next());
    if (piece.empty()) break;
    bytes += piece.size();
  }
  return std::min(bytes, limit);
}

// "DIRECTORY/STEM-HASH", the hash being of all that shapes the tokens.
absl::StatusOr<std::string> PreparedPrefix(FileSystem& files, const DataConfig& config,
                                           const Tokenizer& tokenizer, const std::string& text) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.OpenForRead(text));
  const std::string key = absl::StrCat(file->size(), " ", Hex(Checksum(file->contents())), " ",
                                       Hex(tokenizer.hash()), " ", config.text_bytes, " ",
                                       Hex(std::bit_cast<uint64_t>(config.validation_fraction)));
  const std::string name = BaseName(text);
  return JoinPath(config.directory,
                  absl::StrCat(name.substr(0, name.find('.')), "-", Hex(Checksum(key))));
}

bool IsUsable(FileSystem& files, const std::string& path) {
  return TokenFile::Open(files, path).ok();
}

absl::Status Prepare(FileSystem& files, const std::string& text, const Tokenizer& tokenizer,
                     const std::string& output, int64_t begin, int64_t end,
                     const LogFunction& log) {
  PrepareOptions options;
  options.begin_byte = begin;
  options.end_byte = end;
  FATHOM_ASSIGN_OR_RETURN(const PrepareStats stats,
                          PrepareTokens(files, {text}, tokenizer, output, options));
  log(absl::StrCat("prepared ", stats.tokens, " tokens of ", text, " in ", output));
  return absl::OkStatus();
}

absl::StatusOr<PreparedData> PrepareSplit(FileSystem& files, const DataConfig& config,
                                          const LogFunction& log) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(config.tokenizer));
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ChooseText(files, config, log));
  FATHOM_ASSIGN_OR_RETURN(const std::string prefix,
                          PreparedPrefix(files, config, *tokenizer, text));
  PreparedData data;
  data.train = absl::StrCat(prefix, "-train.tokens");
  if (config.validation_fraction > 0) data.validation = absl::StrCat(prefix, "-validation.tokens");
  if (IsUsable(files, data.train) &&
      (data.validation.empty() || IsUsable(files, data.validation))) {
    return data;
  }

  const int64_t limit =
      config.text_bytes > 0 ? config.text_bytes : std::numeric_limits<int64_t>::max();
  FATHOM_ASSIGN_OR_RETURN(const int64_t bytes, CountBytes(files, text, limit));
  const int64_t cut = std::llround(bytes * (1 - config.validation_fraction));
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(config.directory));
  FATHOM_RETURN_IF_ERROR(Prepare(files, text, *tokenizer, data.train, 0, cut, log));
  if (!data.validation.empty()) {
    FATHOM_RETURN_IF_ERROR(Prepare(files, text, *tokenizer, data.validation, cut, bytes, log));
  }
  return data;
}

}  // namespace

absl::StatusOr<PreparedData> EnsurePrepared(FileSystem& files, const DataConfig& config,
                                            const LogFunction& log) {
  PreparedData data;
  if (!config.blend.empty()) {
    // Its files are opened one by one.
  } else if (config.train.empty()) {
    FATHOM_ASSIGN_OR_RETURN(data, PrepareSplit(files, config, log));
  } else {
    FATHOM_ASSIGN_OR_RETURN(data.train, ResolveTokens(files, config.train));
  }
  if (!config.validation.empty()) {
    FATHOM_ASSIGN_OR_RETURN(data.validation, ResolveTokens(files, config.validation));
  }
  return data;
}

}  // namespace fathom
