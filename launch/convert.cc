#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/run_environment.h"
#include "runtime/export.h"
#include "runtime/reshard.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom convert FROM DIR [--format checkpoint|huggingface] [--dtype bf16|fp32]
                      [--shard-size BYTES] [--job JOB]
       fathom convert CHECKPOINT DIR --layout FIELD=VALUE[,FIELD=VALUE]... [--weights-only]

Writes the weights of FROM into DIR, which must be new or empty. FROM is
  a checkpoint          RUN/step_NNNNNNNN, or a run, for its newest one
  weights               a safetensors file, or a directory with model.safetensors
  Hugging Face's        a directory with config.json of Qwen3ForCausalLM or Glm4MoeForCausalLM, and
                        its safetensors, in one file or several

  --format checkpoint   (default) the weights in DIR/model.safetensors, to start a run from with
                        train.init_from; out of a Hugging Face directory also DIR/job.txtpb, a job
                        with its model, and the tokenizer's files
  --format huggingface  a directory that transformers opens: as Qwen3ForCausalLM where all layers
                        are dense, as Glm4MoeForCausalLM where they are mixtures of experts or dense
                        layers followed by those; with the files of the job's tokenizer
  --dtype bf16|fp32     what weights are rounded or widened to; they stay as they are without it.
                        The gates of experts are never rounded
  --shard-size BYTES    huggingface: weights above it are written in several files (default
                        5000000000)
  --job JOB             huggingface: the job whose model weights are of, where DIR/job.txtpb is not
                        beside them

  --layout LAYOUT       the whole checkpoint in the shards of another layout, as a run in DIR that
                        --resume continues: fields of the job's parallel, such as
                        tensor=2,pipeline=2,zero=1; fields that are not named stay as they are. Any
                        layout loads any checkpoint; this saves the ranks of a large run from
                        reading parts of many files
  --weights-only        layout: without the optimizer's state, for train.init_from; only then
                        --dtype may be given

examples: fathom convert runs/toy_dense exported --format huggingface --dtype bf16
          fathom convert runs/toy_dense runs/two_stages --layout pipeline=2
          fathom convert Qwen3-0.6B start
          fathom train start/job.txtpb --set train.init_from=start --set data.text=corpus.txt
)";

absl::StatusOr<ExportFormat> ParseFormat(const std::string& format) {
  if (format == "checkpoint") return ExportFormat::kCheckpoint;
  if (format == "huggingface") return ExportFormat::kHuggingFace;
  return absl::InvalidArgumentError(
      absl::StrCat("--format is \"", format, "\", but it must be checkpoint or huggingface"));
}

absl::StatusOr<DType> ParseDType(const std::string& dtype) {
  if (dtype == "bf16") return DType::kBFloat16;
  if (dtype == "fp32") return DType::kFloat32;
  return absl::InvalidArgumentError(
      absl::StrCat("--dtype is \"", dtype, "\", but it must be bf16 or fp32"));
}

absl::StatusOr<ExportOptions> ParseOptions(const Arguments& arguments) {
  ExportOptions options;
  FATHOM_ASSIGN_OR_RETURN(options.format, ParseFormat(arguments.Value("format", "checkpoint")));
  if (arguments.Has("dtype")) {
    FATHOM_ASSIGN_OR_RETURN(options.dtype, ParseDType(arguments.Value("dtype")));
  }
  options.job = arguments.Value("job");
  for (const char* flag : {"shard-size", "job"}) {
    if (!arguments.Has(flag) || options.format == ExportFormat::kHuggingFace) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is given, but it is only for --format huggingface"));
  }
  if (!arguments.Has("shard-size")) return options;
  const std::string size = arguments.Value("shard-size");
  if (!absl::SimpleAtoi(size, &options.shard_bytes) || options.shard_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--shard-size is \"", size, "\", but it must be a number of bytes, 1 or more"));
  }
  return options;
}

// What follows --layout, which may be given several times.
absl::StatusOr<ReshardOptions> ParseReshardOptions(const Arguments& arguments) {
  for (const char* flag : {"format", "shard-size", "job"}) {
    if (!arguments.Has(flag)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, " is given, but with --layout checkpoints stay checkpoints"));
  }
  ReshardOptions options{.layout = {}, .weights_only = arguments.Has("weights-only")};
  for (const std::string& fields : arguments.Values("layout")) {
    for (absl::string_view field :
         absl::StrSplit(fields, absl::ByAnyChar(", "), absl::SkipEmpty())) {
      absl::ConsumePrefix(&field, "parallel.");
      options.layout.emplace_back(field);
    }
  }
  if (options.layout.empty()) {
    return absl::InvalidArgumentError(
        "--layout is empty, but it must name fields of parallel, as tensor=2,pipeline=2");
  }
  if (!arguments.Has("dtype")) return options;
  if (!options.weights_only) {
    return absl::InvalidArgumentError(
        "--dtype is given, but what a run continues from stays as exact as it is: add "
        "--weights-only for weights to start from");
  }
  FATHOM_ASSIGN_OR_RETURN(options.dtype, ParseDType(arguments.Value("dtype")));
  return options;
}

absl::Status RunReshard(const Arguments& arguments) {
  FATHOM_ASSIGN_OR_RETURN(const ReshardOptions options, ParseReshardOptions(arguments));
  const std::string& directory = arguments.words()[1];
  FATHOM_ASSIGN_OR_RETURN(
      const std::string layout,
      ReshardCheckpoint(PosixFileSystem(), arguments.words()[0], directory, options, LogLine));
  LogLine(absl::StrCat(directory, " is written for ", layout));
  return absl::OkStatus();
}

absl::Status RunConvert(const Arguments& arguments) {
  if (arguments.words().size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("what to convert and a directory are needed, ", arguments.words().size(),
                     " words were given; \"fathom convert --help\" shows an example"));
  }
  for (const std::string& word : arguments.words()) {
    if (word.empty()) return absl::InvalidArgumentError("an empty name was given");
  }
  if (arguments.Has("layout")) return RunReshard(arguments);
  if (arguments.Has("weights-only")) {
    return absl::InvalidArgumentError(
        "--weights-only is given, but it is only for --layout: without that nothing else is "
        "converted");
  }
  FATHOM_ASSIGN_OR_RETURN(const ExportOptions options, ParseOptions(arguments));
  const std::string& directory = arguments.words()[1];
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> notes,
                          Export(PosixFileSystem(), arguments.words()[0], directory, options));
  for (const std::string& note : notes) LogLine(note);
  LogLine(absl::StrCat(directory, " is written"));
  return absl::OkStatus();
}

}  // namespace

int ConvertMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(
      argc, argv, {"format", "layout", "dtype", "shard-size", "job"}, {"weights-only"});
  if (!arguments.ok()) return Fail("convert", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = RunConvert(*arguments);
  return status.ok() ? kDone : Fail("convert", status);
}

}  // namespace fathom
