#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/comparison.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom compare A B [--rtol X]

Compares two checkpoints (or runs, for their newest checkpoint), two dumps of debug.dump_step, or
two safetensors files, tensor by tensor and by position, and prints what differs, worst first
(twenty tensors beyond the tolerance, and the worst of each file within it): the place, both values,
max|A - B| / max|B| and the ratio of the L2 norms. Times are left out.
  --rtol X  a tensor or number may differ by so much of B's largest element; default 0: every bit
            must be equal. Integers must always be equal, and NaN always differs.

In a dump that holds float32, gradients far smaller than the norm of all gradients are measured
against a share of that norm.

The exit status is 0 within the tolerance, 1 beyond it, 2 when there is nothing to compare.

example: fathom compare runs/a/dump_00000002 runs/b/dump_00000002
         fathom compare runs/a/step_00000010 runs/b --rtol 1e-9
)";

constexpr size_t kLines = 20;  // beyond the tolerance

absl::StatusOr<double> Tolerance(const Arguments& arguments) {
  const std::string text = arguments.Value("rtol", "0");
  char* end = nullptr;
  const double tolerance = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(tolerance) || tolerance < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rtol is \"", text, "\", but it must be a number, 0 or more"));
  }
  return tolerance;
}

void Print(const Comparison& comparison, double tolerance) {
  const std::string compared = absl::StrFormat(
      "%d tensors%s", comparison.tensors,
      comparison.numbers == 0 ? "" : absl::StrFormat(", %d numbers", comparison.numbers));
  if (comparison.differences.empty()) {
    std::printf("equal: %s\n", compared.c_str());
    return;
  }
  size_t shown = 0;
  std::set<std::string> shown_files;
  for (const Difference& difference : comparison.differences) {
    const bool worst_of_file =
        shown_files.insert(difference.where.substr(0, difference.where.find(':'))).second;
    if (difference.beyond ? shown >= kLines : !worst_of_file) continue;
    std::printf("%s %s: %s\n", difference.beyond ? "beyond" : "within", difference.where.c_str(),
                difference.what.c_str());
    ++shown;
  }
  std::printf("%s: %zu differ, %lld of them beyond the tolerance %g (compared: %s)\n",
              comparison.beyond > 0 ? "different" : "within the tolerance",
              comparison.differences.size(), static_cast<long long>(comparison.beyond), tolerance,
              compared.c_str());
}

absl::StatusOr<int> RunCompare(const Arguments& arguments) {
  if (arguments.words().size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "two checkpoints, dumps or safetensors files are needed, ", arguments.words().size(),
        " words were given; \"fathom compare --help\" shows an example"));
  }
  FATHOM_ASSIGN_OR_RETURN(const double tolerance, Tolerance(arguments));
  FATHOM_ASSIGN_OR_RETURN(
      const Comparison comparison,
      Compare(PosixFileSystem(), arguments.words()[0], arguments.words()[1], tolerance));
  Print(comparison, tolerance);
  return comparison.beyond > 0 ? kRunFailed : kDone;
}

}  // namespace

int CompareMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(argc, argv, {"rtol"}, {});
  if (!arguments.ok()) return Fail("compare", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::StatusOr<int> result = RunCompare(*arguments);
  if (result.ok()) return *result;
  Fail("compare", result.status());
  // Status 1 says that the two differ, so what cannot be compared, damaged files too, has another.
  return kRefused;
}

}  // namespace fathom
