// fathom prepare: text to a token file.

#include "runtime/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/checksum.h"
#include "runtime/data/tokenizer.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    "fathom prepare: makes a token file of text.\n"
    "\n"
    "usage: fathom prepare --tokenizer bytes --output PREFIX [flags] FILE...|-\n"
    "\n"
    "Each FILE, plain or gzip (\"-\": standard input), becomes one document of PREFIX.tokens.\n"
    "\n"
    "  --tokenizer NAME  \"bytes\": a token per byte, and 256 for the end of a document\n"
    "  --output PREFIX   where PREFIX.tokens is written\n"
    "  --format NAME     \"fathom\", the default\n"
    "  --threads N       at most so many threads; reading is sequential, so one is used\n"
    "\n"
    "example:\n"
    "  fathom prepare --tokenizer bytes --output data/gcide /usr/share/dictd/gcide.dict.dz\n"
    "  fathom train launch/jobs/quickstart.txtpb --set data.train=data/gcide\n";

// One line on standard error: redrawn on a terminal, silent elsewhere.
class ProgressLine {
 public:
  void Show(const PrepareStats& stats) {
    if (!terminal_ || stats.seconds - last_ < 0.1) return;
    last_ = stats.seconds;
    std::fprintf(stderr, "\r\033[K%s", Describe(stats).c_str());
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
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  double last_ = 0;
};

absl::Status CheckThreads(const std::string& threads) {
  int number = 0;
  const auto [end, error] =
      std::from_chars(threads.data(), threads.data() + threads.size(), number);
  if (error != std::errc() || end != threads.data() + threads.size() || number < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads should be a number of at least 1, not \"", threads, "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckFlags(const Arguments& arguments) {
  if (arguments.Value("tokenizer").empty()) {
    return absl::InvalidArgumentError("--tokenizer is missing; \"bytes\" is the one there is");
  }
  if (arguments.Value("output").empty()) {
    return absl::InvalidArgumentError("--output is missing: the name before \".tokens\"");
  }
  if (arguments.words().empty()) {
    return absl::InvalidArgumentError("no text was named: give files, or \"-\" for standard input");
  }
  const std::string format = arguments.Value("format", "fathom");
  if (format == "megatron") {
    return absl::UnimplementedError("--format megatron is not built yet; \"fathom\" is");
  }
  if (format != "fathom") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format should be \"fathom\", not \"", format, "\""));
  }
  return CheckThreads(arguments.Value("threads", "1"));
}

std::string OutputPath(std::string prefix) {
  constexpr char kExtension[] = ".tokens";
  if (prefix.size() < 7 || prefix.compare(prefix.size() - 7, 7, kExtension) != 0) {
    prefix += kExtension;
  }
  return prefix;
}

absl::Status Prepare(const Arguments& arguments) {
  FATHOM_RETURN_IF_ERROR(CheckFlags(arguments));
  FATHOM_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(arguments.Value("tokenizer")));
  FileSystem& files = PosixFileSystem();
  const std::string output = OutputPath(arguments.Value("output"));
  if (const size_t slash = output.rfind('/'); slash != std::string::npos && slash > 0) {
    FATHOM_RETURN_IF_ERROR(files.CreateDirectories(output.substr(0, slash)));
  }
  ProgressLine line;
  PrepareOptions options;
  options.progress = [&line](const PrepareStats& stats) { line.Show(stats); };
  const auto stats = PrepareTokens(files, arguments.words(), *tokenizer, output, options);
  line.Clear();
  if (!stats.ok()) return stats.status();
  std::printf("%s: %lld document%s, %s, checksum %s\n", output.c_str(),
              static_cast<long long>(stats->documents), stats->documents == 1 ? "" : "s",
              ProgressLine::Describe(*stats).c_str(), Hex(stats->checksum).c_str());
  return absl::OkStatus();
}

}  // namespace

int PrepareMain(int argc, char** argv) {
  const auto arguments =
      Arguments::Parse(argc, argv, {"tokenizer", "output", "format", "threads"}, {});
  if (!arguments.ok()) return Fail("prepare", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = Prepare(*arguments);
  return status.ok() ? kDone : Fail("prepare", status);
}

}  // namespace fathom
