// encode_file TOKENIZER INPUT OUTPUT [REPEATS]
//
// Encodes the texts of INPUT, each a 64-bit size and then its bytes, and writes to OUTPUT for each
// the number of tokens in 64 bits and then the tokens in 32. Checks that every text survives the
// round trip. Prints the bytes, and the processor seconds that encoding took, the least of REPEATS.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>

#include "core/file.h"
#include "core/status.h"
#include "runtime/data/tokenizer.h"

namespace fathom {
namespace {

absl::StatusOr<std::vector<std::string_view>> Split(std::string_view all) {
  std::vector<std::string_view> texts;
  while (!all.empty()) {
    uint64_t size;
    if (all.size() < sizeof(size)) return absl::DataLossError("the input ends within a size");
    std::memcpy(&size, all.data(), sizeof(size));
    all.remove_prefix(sizeof(size));
    if (size > all.size()) return absl::DataLossError("the input ends within a text");
    texts.push_back(all.substr(0, size));
    all.remove_prefix(size);
  }
  return texts;
}

// Of this process on a core, so that other work on the machine hardly shows.
double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

absl::Status Run(const std::string& name, const std::string& input, const std::string& output,
                 int repeats) {
  FileSystem& files = PosixFileSystem();
  FATHOM_ASSIGN_OR_RETURN(const auto tokenizer, MakeTokenizer(name, files));
  FATHOM_ASSIGN_OR_RETURN(const auto file, files.OpenForRead(input));
  FATHOM_ASSIGN_OR_RETURN(const auto texts, Split(file->contents()));

  std::vector<std::vector<int32_t>> tokens(texts.size());
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double start = ProcessorSeconds();
    for (size_t i = 0; i < texts.size(); ++i) {
      tokens[i].clear();
      tokenizer->Encode(texts[i], &tokens[i]);
    }
    best = std::min(best, ProcessorSeconds() - start);
  }
  std::string written;
  uint64_t bytes = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    FATHOM_ASSIGN_OR_RETURN(const std::string decoded, tokenizer->Decode(tokens[i]));
    if (decoded != texts[i]) {
      return absl::InternalError(absl::StrCat("text ", i, " does not survive the round trip"));
    }
    const uint64_t count = tokens[i].size();
    written.append(reinterpret_cast<const char*>(&count), sizeof(count));
    written.append(reinterpret_cast<const char*>(tokens[i].data()), count * sizeof(int32_t));
    bytes += texts[i].size();
  }
  std::printf("%llu bytes %.6f seconds\n", static_cast<unsigned long long>(bytes), best);
  return WriteFileAtomically(files, output, written);
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: encode_file TOKENIZER INPUT OUTPUT [REPEATS]\n");
    return 2;
  }
  const absl::Status status =
      fathom::Run(argv[1], argv[2], argv[3], argc == 5 ? std::atoi(argv[4]) : 1);
  if (status.ok()) return 0;
  std::fprintf(stderr, "encode_file: %s\n", std::string(status.message()).c_str());
  return 1;
}
