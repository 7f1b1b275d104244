#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checksum.h"
#include "runtime/data/token_source.h"
#include "runtime/data/token_writer.h"

namespace fathom {

// Megatron-LM's indexed data set: PREFIX.bin has the tokens, PREFIX.idx says where sequences and
// documents begin. docs/formats.md has the grammar.

// Both files, mapped. Thread-safe.
class MegatronTokens final : public TokenSource {
 public:
  // Checks the index as a whole: sizes, lengths, offsets without gaps, rising documents, and that
  // it describes the whole of the .bin. Tokens of 2 bytes (code 8) and 4 (code 4) are read.
  // NotFound for a missing file, DataLoss, naming it, for one that is damaged or does not match.
  static absl::StatusOr<std::unique_ptr<MegatronTokens>> Open(FileSystem& files,
                                                              const std::string& prefix);

  const std::string& path() const override { return bin_path_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return documents_; }
  int64_t DocumentEnd(int64_t document) const override;
  int64_t vocabulary() const override { return 0; }
  absl::Status CheckUnchanged() const override;
  void Read(int64_t begin, int64_t count, int32_t* out) const override;

 private:
  MegatronTokens(std::string bin_path, std::string idx_path)
      : bin_path_(std::move(bin_path)), idx_path_(std::move(idx_path)) {}
  absl::Status ParseHead();
  absl::Status CheckSequences();
  absl::Status CheckDocuments() const;
  absl::Status Damaged(const std::string& what) const;

  const std::string bin_path_;
  const std::string idx_path_;
  std::unique_ptr<ReadableFile> bin_;
  std::unique_ptr<ReadableFile> idx_;
  int64_t width_ = 0;  // bytes per token
  int64_t tokens_ = 0;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  // Arrays of the index, which lie at no multiple of their elements' sizes.
  const char* lengths_ = nullptr;       // [sequences_] int32
  const char* offsets_ = nullptr;       // [sequences_] int64, in bytes of the .bin
  const char* documents_at_ = nullptr;  // [documents_ + 1] int64, in sequences
};

// Writes the two files, each document as one sequence. Tokens have 2 bytes for vocabularies below
// 65500, else 4, as Megatron-LM chooses. An older pair of the same name is replaced; if the process
// dies in between, the .idx is missing. Memory: a fixed buffer, and 4 bytes per document.
class MegatronWriter final : public TokenWriter {
 public:
  static absl::StatusOr<std::unique_ptr<MegatronWriter>> Create(FileSystem& files,
                                                                const std::string& prefix,
                                                                const TokenFileInfo& info);
  ~MegatronWriter() override;

  absl::Status Append(const int32_t* tokens, int64_t count) override;
  // OutOfRange for a document of more tokens than the format's 32 bits count.
  absl::Status EndDocument() override;
  absl::Status Finish() override;

  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return lengths_.size(); }
  uint64_t tokens_checksum() const override { return tokens_checksum_; }

 private:
  MegatronWriter(FileSystem& files, std::string prefix, int64_t vocabulary);
  absl::Status Flush();
  absl::Status WriteIndex();

  FileSystem& files_;
  const std::string prefix_;
  const std::string temporary_bin_;
  const std::string temporary_idx_;
  const int64_t vocabulary_;
  const int64_t width_;
  bool finished_ = false;
  std::unique_ptr<WritableFile> bin_;
  ChecksumStream checksum_;
  std::string buffer_;
  std::vector<int32_t> lengths_;
  int64_t tokens_ = 0;
  int64_t ended_ = 0;  // tokens in documents that are ended
  uint64_t tokens_checksum_ = 0;
};

}  // namespace fathom
