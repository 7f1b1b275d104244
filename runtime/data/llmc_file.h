#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/token_source.h"

namespace fathom {

// A token file of llm.c, mapped: 256 int32 of head and then the tokens, of 2 or 4 bytes.
// docs/formats.md has the grammar. The format knows no documents, so it is one. Thread-safe.
class LlmcTokens final : public TokenSource {
 public:
  // NotFound for a missing file, DataLoss, naming it, for one that is not what it should be.
  static absl::StatusOr<std::unique_ptr<LlmcTokens>> Open(FileSystem& files,
                                                          const std::string& path);
  // Whether a file of these first bytes says that it is one.
  static bool HasMagic(std::string_view contents);

  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return 1; }
  int64_t DocumentEnd(int64_t document) const override;
  bool knows_documents() const override { return false; }
  int64_t vocabulary() const override { return 0; }
  absl::Status CheckUnchanged() const override { return file_->CheckUnchanged(); }
  void Read(int64_t begin, int64_t count, int32_t* out) const override;

 private:
  LlmcTokens(std::string path, std::unique_ptr<ReadableFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const std::unique_ptr<ReadableFile> file_;
  int64_t width_ = 0;  // bytes per token
  int64_t tokens_ = 0;
};

}  // namespace fathom
