#include <limits>
#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/data/megatron_files.h"
#include "runtime/data/megatron_format.h"
#include "runtime/data/token_format.h"

namespace fathom {
namespace {

constexpr size_t kBufferSize = size_t{1} << 20;

absl::Status Complete(WritableFile& file) {
  FATHOM_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

}  // namespace

MegatronWriter::MegatronWriter(FileSystem& files, std::string prefix, int64_t vocabulary)
    : files_(files),
      prefix_(std::move(prefix)),
      temporary_bin_(TemporaryPath(absl::StrCat(prefix_, ".bin"))),
      temporary_idx_(TemporaryPath(absl::StrCat(prefix_, ".idx"))),
      vocabulary_(vocabulary),
      width_(vocabulary < megatron_format::kWideVocabulary ? 2 : 4) {}

MegatronWriter::~MegatronWriter() {
  if (finished_) return;
  bin_.reset();
  files_.RemoveAll(temporary_bin_).IgnoreError();
  files_.RemoveAll(temporary_idx_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<MegatronWriter>> MegatronWriter::Create(FileSystem& files,
                                                                       const std::string& prefix,
                                                                       const TokenFileInfo& info) {
  FATHOM_CHECK(info.vocabulary > 0 && info.vocabulary <= std::numeric_limits<int32_t>::max());
  std::unique_ptr<MegatronWriter> writer(new MegatronWriter(files, prefix, info.vocabulary));
  FATHOM_ASSIGN_OR_RETURN(writer->bin_, files.OpenForWrite(writer->temporary_bin_));
  return writer;
}

absl::Status MegatronWriter::Append(const int32_t* tokens, int64_t count) {
  const int64_t outside = token_format::FirstOutside(tokens, count, vocabulary_);
  if (outside >= 0) {
    return absl::OutOfRangeError(absl::StrCat("token ", tokens[outside], " at offset ",
                                              tokens_ + outside,
                                              " is outside of the vocabulary of ", vocabulary_,
                                              " that ", prefix_, ".bin is written for"));
  }
  token_format::StoreTokens(tokens, width_, count, &buffer_);
  tokens_ += count;
  return buffer_.size() >= kBufferSize ? Flush() : absl::OkStatus();
}

absl::Status MegatronWriter::EndDocument() {
  const int64_t length = tokens_ - ended_;
  FATHOM_CHECK(length > 0) << "a document without tokens";
  if (length > std::numeric_limits<int32_t>::max()) {
    return absl::OutOfRangeError(
        absl::StrCat("document ", lengths_.size(), " has ", length,
                     " tokens, more than Megatron's format can hold in one document; use --format "
                     "fathom, or cut it"));
  }
  lengths_.push_back(static_cast<int32_t>(length));
  ended_ = tokens_;
  return absl::OkStatus();
}

absl::Status MegatronWriter::Flush() {
  checksum_.Add(buffer_);
  const absl::Status status = bin_->Append(buffer_);
  buffer_.clear();
  return status;
}

absl::Status MegatronWriter::WriteIndex() {
  using token_format::Store;
  std::string idx(megatron_format::kMagic);
  Store<uint64_t>(megatron_format::kVersion, &idx);
  Store<uint8_t>(width_ == 2 ? megatron_format::kUint16 : megatron_format::kInt32, &idx);
  Store<uint64_t>(lengths_.size(), &idx);
  Store<uint64_t>(lengths_.size() + 1, &idx);
  for (const int32_t length : lengths_) Store<int32_t>(length, &idx);
  int64_t offset = 0;
  for (const int32_t length : lengths_) {
    Store<int64_t>(offset, &idx);
    offset += length * width_;
  }
  for (size_t i = 0; i <= lengths_.size(); ++i) Store<int64_t>(i, &idx);
  FATHOM_ASSIGN_OR_RETURN(const auto file, files_.OpenForWrite(temporary_idx_));
  FATHOM_RETURN_IF_ERROR(file->Append(idx));
  return Complete(*file);
}

absl::Status MegatronWriter::Finish() {
  FATHOM_CHECK(!lengths_.empty() && ended_ == tokens_) << "the last document is not ended";
  FATHOM_RETURN_IF_ERROR(Flush());
  tokens_checksum_ = checksum_.value();
  FATHOM_RETURN_IF_ERROR(Complete(*bin_));
  FATHOM_RETURN_IF_ERROR(WriteIndex());
  // An index that is there always belongs to the .bin beside it.
  const std::string idx = absl::StrCat(prefix_, ".idx");
  FATHOM_RETURN_IF_ERROR(files_.RemoveAll(idx));
  FATHOM_RETURN_IF_ERROR(files_.Rename(temporary_bin_, absl::StrCat(prefix_, ".bin")));
  FATHOM_RETURN_IF_ERROR(files_.Rename(temporary_idx_, idx));
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace fathom
