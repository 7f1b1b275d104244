#include "runtime/data/token_file.h"

#include <cstring>
#include <limits>

#include "core/check.h"
#include "core/status.h"
#include "runtime/checksum.h"
#include "runtime/data/token_format.h"

namespace fathom {

absl::StatusOr<std::string> ResolveTokenPath(FileSystem& files, const std::string& path) {
  for (const std::string& candidate : {path, absl::StrCat(path, token_format::kExtension)}) {
    if (files.Exists(candidate) && !files.IsDirectory(candidate)) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("there is no token file ", path, " or ", path,
                                          token_format::kExtension,
                                          "; `fathom prepare` makes one from text"));
}

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(FileSystem& files,
                                                           const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(std::string resolved, ResolveTokenPath(files, path));
  std::unique_ptr<TokenFile> file(new TokenFile(std::move(resolved)));
  FATHOM_ASSIGN_OR_RETURN(file->file_, files.OpenForRead(file->path_));
  FATHOM_RETURN_IF_ERROR(file->ParseHead());
  FATHOM_RETURN_IF_ERROR(file->ParseFooter());
  FATHOM_RETURN_IF_ERROR(file->CheckDocuments());
  return file;
}

absl::Status TokenFile::Damaged(std::string_view what) const {
  return absl::DataLossError(absl::StrCat(path_, " ", std::string(what)));
}

absl::Status TokenFile::ParseHead() {
  using namespace token_format;
  const std::string_view data = file_->contents();
  if (data.empty()) return Damaged("is empty");
  if (data.substr(0, kMagic.size()) != kMagic.substr(0, data.size())) {
    return Damaged("is not a token file (it does not begin as one); `fathom prepare` makes one");
  }
  if (data.size() < kFixedHeadSize) return Damaged("is truncated inside its head");
  const uint32_t version = Load<uint32_t>(&data[8]);
  if (version > kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " has version ", version,
                                                      " of the token file format, and this program "
                                                      "reads up to version ",
                                                      kVersion));
  }
  if (version == 0) return Damaged("has version 0 of the token file format, which does not exist");
  width_ = Load<uint32_t>(&data[12]);
  info_.vocabulary = Load<uint32_t>(&data[16]);
  info_.tokenizer_hash = Load<uint64_t>(&data[24]);
  const uint32_t name_size = Load<uint32_t>(&data[20]);
  if (width_ != 2 && width_ != 4) {
    return Damaged(absl::StrCat("has tokens of ", width_, " bytes, where 2 or 4 are possible"));
  }
  if (info_.vocabulary == 0) return Damaged("has a vocabulary of 0 tokens");
  head_size_ = kFixedHeadSize + Padded(name_size);
  if (head_size_ > data.size()) return Damaged("is truncated inside its head");
  info_.tokenizer = std::string(data.substr(kFixedHeadSize, name_size));
  return absl::OkStatus();
}

absl::Status TokenFile::ParseFooter() {
  using namespace token_format;
  const std::string_view data = file_->contents();
  const int64_t body_size = data.size() - head_size_ - kFooterSize;
  const char* footer = data.data() + data.size() - kFooterSize;
  if (body_size < 0 || std::string_view(footer + 32, kEndMagic.size()) != kEndMagic) {
    return Damaged("is truncated: its footer is missing");
  }
  const uint64_t tokens = Load<uint64_t>(footer);
  const uint64_t documents = Load<uint64_t>(footer + 8);
  if (tokens > body_size / width_ || documents > body_size / 8 ||
      Padded(tokens * width_) + documents * 8 != body_size) {
    return Damaged(absl::StrCat("has ", data.size(), " bytes, which does not fit its ", tokens,
                                " tokens in ", documents, " documents"));
  }
  tokens_ = tokens;
  documents_ = documents;
  tokens_checksum_ = Load<uint64_t>(footer + 16);
  token_data_ = data.data() + head_size_;
  document_ends_ = token_data_ + Padded(tokens_ * width_);
  const uint64_t frame_checksum =
      FrameChecksum(data.substr(0, head_size_), std::string_view(document_ends_, documents_ * 8),
                    std::string_view(footer, 24));
  if (frame_checksum != Load<uint64_t>(footer + 24)) {
    return Damaged("is damaged: its head or table of documents does not match the checksum");
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckDocuments() const {
  if (documents_ == 0) return Damaged("holds no documents");
  if (tokens_ == 0) return Damaged("holds no tokens");
  // Ends rise strictly, since every document holds at least its end-of-document token.
  int64_t previous = 0;
  for (int64_t i = 0; i < documents_; ++i) {
    const int64_t end = DocumentEnd(i);
    if (end <= previous || end > tokens_) {
      return Damaged(absl::StrCat("is damaged: document ", i, " ends at token ", end));
    }
    previous = end;
  }
  if (previous != tokens_) return Damaged("is damaged: its last document does not end it");
  return absl::OkStatus();
}

int64_t TokenFile::DocumentEnd(int64_t document) const {
  FATHOM_CHECK(document >= 0 && document < documents_);
  return token_format::Load<uint64_t>(document_ends_ + 8 * document);
}

void TokenFile::Read(int64_t begin, int64_t count, int32_t* out) const {
  FATHOM_CHECK(begin >= 0 && count >= 0 && count <= tokens_ - begin);
  token_format::LoadTokens(token_data_ + begin * width_, width_, count, out);
}

absl::Status TokenFile::Verify() const {
  if (Checksum(std::string_view(token_data_, tokens_ * width_)) != tokens_checksum_) {
    return Damaged("is damaged: its tokens do not match their checksum");
  }
  return absl::OkStatus();
}

}  // namespace fathom
