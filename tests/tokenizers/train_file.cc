// train_file VOCABULARY INPUT DIRECTORY
//
// Trains a byte-level vocabulary on a text file and writes vocab.bpe and encoder.json.

#include <cstdio>
#include <cstdlib>

#include "core/file.h"
#include "core/status.h"
#include "runtime/data/bpe_files.h"
#include "runtime/data/bpe_trainer.h"

namespace fathom {
namespace {

absl::Status Run(int64_t vocabulary, const std::string& input, const std::string& directory) {
  FileSystem& files = PosixFileSystem();
  FATHOM_ASSIGN_OR_RETURN(const auto file, files.OpenForRead(input));
  BpeTrainer trainer;
  trainer.Add(file->contents());
  FATHOM_ASSIGN_OR_RETURN(const BpeVocabulary trained, trainer.Train(vocabulary));
  return WriteGpt2Files(files, directory, trained);
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: train_file VOCABULARY INPUT DIRECTORY\n");
    return 2;
  }
  const absl::Status status = fathom::Run(std::atoll(argv[1]), argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "train_file: %s\n", std::string(status.message()).c_str());
  return 1;
}
