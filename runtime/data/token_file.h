#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checksum.h"
#include "runtime/data/token_source.h"
#include "runtime/data/token_writer.h"

namespace fathom {

// Fathom's own token file, one file "PREFIX.tokens"; docs/formats.md has the grammar.

// A token file, mapped into memory. Thread-safe.
class TokenFile final : public TokenSource {
 public:
  // `path` is the file's name with or without ".tokens". Checks the frame, the table of documents
  // and its checksum, but not the tokens: Verify does. NotFound for a missing file,
  // FailedPrecondition for a version that is newer than this program, DataLoss for anything else
  // that is wrong.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(FileSystem& files,
                                                         const std::string& path);

  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return documents_; }
  int64_t DocumentEnd(int64_t document) const override;
  int64_t vocabulary() const override { return info_.vocabulary; }
  uint64_t tokenizer_hash() const override { return info_.tokenizer_hash; }
  absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }
  void Read(int64_t begin, int64_t count, int32_t* out) const override;

  const TokenFileInfo& info() const { return info_; }
  // XXH3 of the stored tokens, as the file records it.
  uint64_t tokens_checksum() const { return tokens_checksum_; }
  // Reads every token: DataLoss when they don't match the recorded checksum.
  absl::Status Verify() const;

 private:
  explicit TokenFile(std::string path) : path_(std::move(path)) {}
  absl::Status ParseHead();
  absl::Status ParseFooter();
  absl::Status CheckDocuments() const;
  absl::Status Damaged(std::string_view what) const;

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  TokenFileInfo info_;
  int64_t head_size_ = 0;
  int64_t width_ = 0;  // bytes per token
  int64_t tokens_ = 0;
  int64_t documents_ = 0;
  uint64_t tokens_checksum_ = 0;
  const char* token_data_ = nullptr;
  const char* document_ends_ = nullptr;
};

// The file that `path` names: itself, or with ".tokens". NotFound when there is neither.
absl::StatusOr<std::string> ResolveTokenPath(FileSystem& files, const std::string& path);

// Memory: a fixed buffer, and 8 bytes per document.
class TokenFileWriter final : public TokenWriter {
 public:
  // `path` is the final name. The vocabulary must be positive and fit 32 bits.
  static absl::StatusOr<std::unique_ptr<TokenFileWriter>> Create(FileSystem& files,
                                                                 const std::string& path,
                                                                 const TokenFileInfo& info);
  ~TokenFileWriter() override;  // removes the temporary file unless Finish succeeded

  absl::Status Append(const int32_t* tokens, int64_t count) override;
  absl::Status EndDocument() override;
  absl::Status Finish() override;

  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override;
  uint64_t tokens_checksum() const override { return tokens_checksum_; }

 private:
  TokenFileWriter(FileSystem& files, std::string path, const TokenFileInfo& info);
  absl::Status Flush();

  FileSystem& files_;
  std::string path_;
  std::string temporary_;
  TokenFileInfo info_;
  int64_t width_;
  std::unique_ptr<WritableFile> file_;
  ChecksumStream checksum_;
  std::string head_;
  std::string buffer_;  // encoded tokens that are not yet in the file
  std::vector<uint64_t> document_ends_;
  int64_t tokens_ = 0;
  uint64_t tokens_checksum_ = 0;
};

}  // namespace fathom
