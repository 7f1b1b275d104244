#include <cstdio>
#include <string>

#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/run_environment.h"
#include "runtime/export.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom convert CHECKPOINT DIR [--format checkpoint|huggingface]

Writes the weights of a checkpoint (RUN/step_NNNNNNNN, or a run, for its newest one) to
DIR/model.safetensors. DIR must be new or empty.
  --format checkpoint   the weights alone, to start another run from with train.init_from (default)
  --format huggingface  also config.json, so that DIR opens as Qwen3ForCausalLM; for models whose
                        layers are all dense

example: fathom convert runs/toy_dense exported --format huggingface
         fathom train launch/jobs/toy_dense.txtpb --set train.init_from=exported \
             --set train.output=runs/second
)";

absl::Status RunConvert(const Arguments& arguments) {
  if (arguments.words().size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("a checkpoint and a directory are needed, ", arguments.words().size(),
                     " words were given; \"fathom convert --help\" shows an example"));
  }
  if (arguments.Has("layout")) {
    return absl::UnimplementedError(
        "--layout is given, but checkpoints for other layouts are not built yet");
  }
  const std::string format = arguments.Value("format", "checkpoint");
  if (format != "checkpoint" && format != "huggingface") {
    return absl::InvalidArgumentError(
        absl::StrCat("--format is \"", format, "\", but it must be checkpoint or huggingface"));
  }
  FATHOM_RETURN_IF_ERROR(ExportWeights(
      PosixFileSystem(), arguments.words()[0], arguments.words()[1],
      format == "huggingface" ? ExportFormat::kHuggingFace : ExportFormat::kCheckpoint));
  LogLine(absl::StrCat(arguments.words()[1], "/model.safetensors is written"));
  return absl::OkStatus();
}

}  // namespace

int ConvertMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments =
      Arguments::Parse(argc, argv, {"format", "layout"}, {});
  if (!arguments.ok()) return Fail("convert", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = RunConvert(*arguments);
  return status.ok() ? kDone : Fail("convert", status);
}

}  // namespace fathom
