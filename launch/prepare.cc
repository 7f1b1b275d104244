// fathom prepare: text to a token file.

#include "runtime/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/checksum.h"
#include "runtime/data/bpe_files.h"
#include "runtime/data/bpe_vocabulary.h"
#include "runtime/data/tokenizer.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(fathom prepare: makes a token file of text.

usage: fathom prepare --tokenizer bytes|DIR|FILE --output PREFIX [flags] FILE...|-
       fathom prepare --train-bpe N --output PREFIX [flags] FILE...

Each FILE ("-": standard input), plain or compressed by gzip or zstd, is one of these:
  JSON lines   with --field, or when its name ends in .jsonl, .ndjson or .json (and .gz or .zst
               behind); each line that is not blank is a document
  text         otherwise: one document
Each document, an empty one too, is closed by one end-of-document token.

  --tokenizer NAME  "bytes": a token per byte, and 256 for the end of a document;
                    a directory with GPT-2's vocab.bpe and encoder.json, or with tokenizer.json;
                    a file: tokenizer.json of a byte-level BPE, or tiktoken's
  --train-bpe N     instead: learns a byte-level BPE vocabulary of N tokens from the input, writes
                    it to the directory PREFIX.tokenizer, and uses it
  --output PREFIX   where PREFIX.tokens is written
  --format NAME     "fathom", the default, or "megatron": PREFIX.bin and PREFIX.idx
  --field NAME      of JSON lines, default "text": a string, or an array of token ids, which is
                    taken as it is
  --threads N       threads that encode, by default one per processor; the output does not depend
                    on it

examples:
  fathom prepare --tokenizer bytes --output data/gcide /usr/share/dictd/gcide.dict.dz
  fathom prepare --tokenizer gpt2/ --output data/web --threads 8 web-*.jsonl.zst
  fathom prepare --tokenizer gpt2/ --output data/web --format megatron --field body web.json.gz
  xz -dc notes.txt.xz | fathom prepare --tokenizer tokenizer.json --output data/notes -
  fathom prepare --train-bpe 8192 --output data/gcide8k /usr/share/dictd/gcide.dict.dz
  fathom train launch/jobs/quickstart.txtpb --set data.train=data/gcide
)";

// The progress on a terminal; nothing elsewhere.
class ProgressLine {
 public:
  void Show(const PrepareStats& stats) {
    if (!terminal_ || stats.seconds - last_ < 0.1) return;
    last_ = stats.seconds;
    std::fprintf(stderr, "\r\033[K%s%s", Describe(stats).c_str(), Left(stats).c_str());
  }
  void Clear() {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }
  static std::string Describe(const PrepareStats& stats) {
    const double megabytes = stats.text_bytes / 1e6;
    return absl::StrFormat("%.1f MB of text, %d tokens, %.1f MB/s", megabytes, stats.tokens,
                           megabytes / std::max(stats.seconds, 1e-9));
  }

 private:
  static std::string Left(const PrepareStats& stats) {
    if (stats.stored_total == 0 || stats.stored_bytes == 0) return "";
    const double share = static_cast<double>(stats.stored_bytes) / stats.stored_total;
    const int64_t seconds = static_cast<int64_t>(stats.seconds * (1 - share) / share + 0.5);
    return absl::StrFormat(", %.0f%%, %d:%02d:%02d left", 100 * share, seconds / 3600,
                           seconds / 60 % 60, seconds % 60);
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  double last_ = 0;
};

absl::StatusOr<int64_t> Number(const Arguments& arguments, const std::string& flag,
                               int64_t otherwise, int64_t least, int64_t most) {
  if (!arguments.Has(flag)) return otherwise;
  const std::string value = arguments.Value(flag);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < least ||
      number > most) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " should be a number from ", least,
                                                   " to ", most, ", not \"", value, "\""));
  }
  return number;
}

absl::Status CheckFlags(const Arguments& arguments) {
  if (arguments.Value("tokenizer").empty() && !arguments.Has("train-bpe")) {
    return absl::InvalidArgumentError(
        "--tokenizer is missing: \"bytes\", or the directory or file of a vocabulary");
  }
  if (arguments.Has("tokenizer") && arguments.Has("train-bpe")) {
    return absl::InvalidArgumentError(
        "--tokenizer and --train-bpe exclude each other: the vocabulary that is trained is used");
  }
  if (arguments.Value("output").empty()) {
    return absl::InvalidArgumentError("--output is missing: the name before \".tokens\"");
  }
  if (arguments.words().empty()) {
    return absl::InvalidArgumentError("no text was named: give files, or \"-\" for standard input");
  }
  const auto standard_inputs =
      std::count(arguments.words().begin(), arguments.words().end(), std::string("-"));
  if (standard_inputs > 1) {
    return absl::InvalidArgumentError("\"-\" is named twice, but standard input is read once");
  }
  if (standard_inputs > 0 && arguments.Has("train-bpe")) {
    return absl::InvalidArgumentError(
        "--train-bpe reads its input twice, which standard input cannot be: give files");
  }
  if (arguments.Has("field") && arguments.Value("field").empty()) {
    return absl::InvalidArgumentError("--field is empty: it names a field of the JSON lines");
  }
  const std::string format = arguments.Value("format", "fathom");
  if (format != "fathom" && format != "megatron") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format should be \"fathom\" or \"megatron\", not \"", format, "\""));
  }
  return absl::OkStatus();
}

// What --output names without the extensions that are added to it.
std::string Prefix(const std::string& output, TokenFormat format) {
  const std::string_view extension = format == TokenFormat::kMegatron ? ".bin" : ".tokens";
  if (output.size() <= extension.size() || !output.ends_with(extension)) return output;
  return output.substr(0, output.size() - extension.size());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TrainTokenizer(FileSystem& files,
                                                          const Arguments& arguments,
                                                          const PrepareOptions& options,
                                                          const std::string& directory) {
  FATHOM_ASSIGN_OR_RETURN(const int64_t size,
                          Number(arguments, "train-bpe", 0, 257, kMaxBpeTokens));
  FATHOM_ASSIGN_OR_RETURN(const BpeVocabulary vocabulary,
                          TrainVocabulary(files, arguments.words(), size, options));
  const std::string temporary = TemporaryPath(directory);
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(temporary));
  FATHOM_RETURN_IF_ERROR(WriteGpt2Files(files, temporary, vocabulary));
  FATHOM_RETURN_IF_ERROR(files.RemoveAll(directory));
  FATHOM_RETURN_IF_ERROR(files.Rename(temporary, directory));
  std::printf("%s: a vocabulary of %lld tokens\n", directory.c_str(), static_cast<long long>(size));
  return MakeTokenizer(directory);
}

absl::StatusOr<PrepareOptions> Options(const Arguments& arguments) {
  PrepareOptions options;
  const int64_t processors = std::max(1u, std::thread::hardware_concurrency());
  FATHOM_ASSIGN_OR_RETURN(options.threads, Number(arguments, "threads", processors, 1, 1024));
  options.json_lines = arguments.Has("field");
  options.field = arguments.Value("field", options.field);
  if (arguments.Value("format") == "megatron") options.format = TokenFormat::kMegatron;
  return options;
}

absl::Status Prepare(const Arguments& arguments) {
  FATHOM_RETURN_IF_ERROR(CheckFlags(arguments));
  FATHOM_ASSIGN_OR_RETURN(PrepareOptions options, Options(arguments));
  FileSystem& files = PosixFileSystem();
  const std::string prefix = Prefix(arguments.Value("output"), options.format);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!arguments.Has("train-bpe")) {
    FATHOM_ASSIGN_OR_RETURN(tokenizer, MakeTokenizer(arguments.Value("tokenizer")));
  }
  if (const size_t slash = prefix.rfind('/'); slash != std::string::npos && slash > 0) {
    FATHOM_RETURN_IF_ERROR(files.CreateDirectories(prefix.substr(0, slash)));
  }
  if (arguments.Has("train-bpe")) {
    FATHOM_ASSIGN_OR_RETURN(
        tokenizer, TrainTokenizer(files, arguments, options, absl::StrCat(prefix, ".tokenizer")));
  }
  ProgressLine line;
  options.progress = [&line](const PrepareStats& stats) { line.Show(stats); };
  const bool megatron = options.format == TokenFormat::kMegatron;
  const auto stats = PrepareTokens(files, arguments.words(), *tokenizer,
                                   megatron ? prefix : absl::StrCat(prefix, ".tokens"), options);
  line.Clear();
  if (!stats.ok()) return stats.status();
  std::printf("%s: %lld document%s, %s, checksum %s\n",
              absl::StrCat(prefix, megatron ? ".bin" : ".tokens").c_str(),
              static_cast<long long>(stats->documents), stats->documents == 1 ? "" : "s",
              ProgressLine::Describe(*stats).c_str(), Hex(stats->checksum).c_str());
  return absl::OkStatus();
}

}  // namespace

int PrepareMain(int argc, char** argv) {
  const auto arguments = Arguments::Parse(
      argc, argv, {"tokenizer", "train-bpe", "output", "format", "field", "threads"}, {});
  if (!arguments.ok()) return Fail("prepare", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = Prepare(*arguments);
  return status.ok() ? kDone : Fail("prepare", status);
}

}  // namespace fathom
