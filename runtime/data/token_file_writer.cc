#include <limits>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/data/token_file.h"
#include "runtime/data/token_format.h"

namespace fathom {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

}  // namespace

TokenFileWriter::TokenFileWriter(FileSystem& files, std::string path, const TokenFileInfo& info)
    : files_(files),
      path_(std::move(path)),
      temporary_(TemporaryPath(path_)),
      info_(info),
      width_(info.vocabulary <= 65536 ? 2 : 4) {}

TokenFileWriter::~TokenFileWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  files_.RemoveAll(temporary_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(
    FileSystem& files, const std::string& path, const TokenFileInfo& info) {
  using namespace token_format;
  FATHOM_CHECK(info.vocabulary > 0 && info.vocabulary <= std::numeric_limits<int32_t>::max());
  std::unique_ptr<TokenFileWriter> writer(new TokenFileWriter(files, path, info));
  std::string& head = writer->head_;
  head.append(kMagic);
  Store<uint32_t>(kVersion, &head);
  Store<uint32_t>(writer->width_, &head);
  Store<uint32_t>(info.vocabulary, &head);
  Store<uint32_t>(info.tokenizer.size(), &head);
  Store<uint64_t>(info.tokenizer_hash, &head);
  head.append(info.tokenizer);
  head.resize(Padded(head.size()));
  FATHOM_ASSIGN_OR_RETURN(writer->file_, files.OpenForWrite(writer->temporary_));
  FATHOM_RETURN_IF_ERROR(writer->file_->Append(head));
  return writer;
}

int64_t TokenFileWriter::documents() const { return document_ends_.size(); }

absl::Status TokenFileWriter::Append(const int32_t* tokens, int64_t count) {
  const int64_t outside = token_format::FirstOutside(tokens, count, info_.vocabulary);
  if (outside >= 0) {
    return absl::OutOfRangeError(absl::StrCat(
        "token ", tokens[outside], " at offset ", tokens_ + outside,
        " is outside of the vocabulary of ", info_.vocabulary, " that ", path_, " is written for"));
  }
  token_format::StoreTokens(tokens, width_, count, &buffer_);
  tokens_ += count;
  return buffer_.size() >= kBufferSize ? Flush() : absl::OkStatus();
}

absl::Status TokenFileWriter::EndDocument() {
  const int64_t begin = document_ends_.empty() ? 0 : document_ends_.back();
  FATHOM_CHECK(tokens_ > begin) << "a document without tokens";
  document_ends_.push_back(tokens_);
  return absl::OkStatus();
}

absl::Status TokenFileWriter::Flush() {
  checksum_.Add(buffer_);
  const absl::Status status = file_->Append(buffer_);
  buffer_.clear();
  return status;
}

absl::Status TokenFileWriter::Finish() {
  using namespace token_format;
  FATHOM_CHECK(!document_ends_.empty() && document_ends_.back() == tokens_)
      << "the last document is not ended";
  FATHOM_RETURN_IF_ERROR(Flush());
  tokens_checksum_ = checksum_.value();

  FATHOM_RETURN_IF_ERROR(
      file_->Append(std::string(Padded(tokens_ * width_) - tokens_ * width_, '\0')));
  const std::string_view table(reinterpret_cast<const char*>(document_ends_.data()),
                               document_ends_.size() * 8);
  FATHOM_RETURN_IF_ERROR(file_->Append(table));
  std::string footer;
  Store<uint64_t>(tokens_, &footer);
  Store<uint64_t>(document_ends_.size(), &footer);
  Store<uint64_t>(tokens_checksum_, &footer);
  Store<uint64_t>(FrameChecksum(head_, table, footer), &footer);
  footer.append(kEndMagic);
  FATHOM_RETURN_IF_ERROR(file_->Append(footer));

  FATHOM_RETURN_IF_ERROR(file_->Sync());
  FATHOM_RETURN_IF_ERROR(file_->Close());
  FATHOM_RETURN_IF_ERROR(files_.Rename(temporary_, path_));
  file_.reset();
  return absl::OkStatus();
}

}  // namespace fathom
