// print_tokens FILE
//
// Prints the tokens of a token file of any format, a line for each document.

#include <cstdio>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/status.h"
#include "runtime/data/open_tokens.h"

namespace fathom {
namespace {

absl::Status Print(const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const auto source, OpenTokens(PosixFileSystem(), path));
  int64_t begin = 0;
  for (int64_t document = 0; document < source->documents(); ++document) {
    const int64_t end = source->DocumentEnd(document);
    std::vector<int32_t> tokens(end - begin);
    source->Read(begin, end - begin, tokens.data());
    for (const int32_t token : tokens) std::printf("%d ", token);
    std::printf("\n");
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: print_tokens FILE\n");
    return 2;
  }
  const absl::Status status = fathom::Print(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "print_tokens: %s\n", std::string(status.message()).c_str());
  return 1;
}
