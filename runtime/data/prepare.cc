#include "runtime/data/prepare.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "core/status.h"
#include "runtime/data/text_input.h"
#include "runtime/data/token_file.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

// Makes documents of inputs, one after another.
class Preparation {
 public:
  Preparation(FileSystem& files, const Tokenizer& tokenizer, TokenFileWriter& writer,
              const PrepareOptions& options)
      : files_(files), tokenizer_(tokenizer), writer_(writer), options_(options) {}

  absl::Status AddDocument(const std::string& path) {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<TextInput> input, TextInput::Open(files_, path));
    const int64_t stored_before = stats_.stored_bytes;
    int64_t offset = 0;
    while (offset < options_.end_byte) {
      FATHOM_ASSIGN_OR_RETURN(std::string_view piece, input->Next());
      if (piece.empty()) break;
      const int64_t piece_begin = std::exchange(offset, offset + piece.size());
      stats_.stored_bytes = stored_before + input->stored_bytes();
      const int64_t begin = std::max(options_.begin_byte, piece_begin);
      const int64_t end = std::min(options_.end_byte, offset);
      if (begin < end) {
        FATHOM_RETURN_IF_ERROR(AddText(piece.substr(begin - piece_begin, end - begin)));
      }
      if (options_.progress) options_.progress(stats());
    }
    const int32_t end_of_document = tokenizer_.end_of_document();
    FATHOM_RETURN_IF_ERROR(writer_.Append(&end_of_document, 1));
    return writer_.EndDocument();
  }

  PrepareStats stats() const {
    PrepareStats stats = stats_;
    stats.tokens = writer_.tokens();
    stats.documents = writer_.documents();
    stats.checksum = writer_.tokens_checksum();
    stats.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    return stats;
  }

 private:
  absl::Status AddText(std::string_view text) {
    tokens_.clear();
    tokenizer_.Encode(text, &tokens_);
    stats_.text_bytes += text.size();
    return writer_.Append(tokens_.data(), tokens_.size());
  }

  FileSystem& files_;
  const Tokenizer& tokenizer_;
  TokenFileWriter& writer_;
  const PrepareOptions& options_;
  const Clock::time_point start_ = Clock::now();
  PrepareStats stats_;
  std::vector<int32_t> tokens_;
};

}  // namespace

absl::StatusOr<PrepareStats> PrepareTokens(FileSystem& files,
                                           const std::vector<std::string>& inputs,
                                           const Tokenizer& tokenizer, const std::string& output,
                                           const PrepareOptions& options) {
  if (inputs.empty()) return absl::InvalidArgumentError("no text was given to prepare");
  const TokenFileInfo info = {tokenizer.name(), tokenizer.hash(), tokenizer.vocabulary()};
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<TokenFileWriter> writer,
                          TokenFileWriter::Create(files, output, info));
  Preparation preparation(files, tokenizer, *writer, options);
  for (const std::string& input : inputs) {
    FATHOM_RETURN_IF_ERROR(preparation.AddDocument(input));
  }
  FATHOM_RETURN_IF_ERROR(writer->Finish());
  return preparation.stats();
}

}  // namespace fathom
