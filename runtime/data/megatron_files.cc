#include "runtime/data/megatron_files.h"

#include "core/check.h"
#include "core/status.h"
#include "runtime/data/megatron_format.h"
#include "runtime/data/token_format.h"

namespace fathom {

using megatron_format::kHeadSize;
using token_format::Load;

absl::StatusOr<std::unique_ptr<MegatronTokens>> MegatronTokens::Open(FileSystem& files,
                                                                     const std::string& prefix) {
  std::unique_ptr<MegatronTokens> tokens(
      new MegatronTokens(absl::StrCat(prefix, ".bin"), absl::StrCat(prefix, ".idx")));
  FATHOM_ASSIGN_OR_RETURN(tokens->idx_, files.OpenForRead(tokens->idx_path_));
  FATHOM_ASSIGN_OR_RETURN(tokens->bin_, files.OpenForRead(tokens->bin_path_));
  FATHOM_RETURN_IF_ERROR(tokens->ParseHead());
  FATHOM_RETURN_IF_ERROR(tokens->CheckSequences());
  FATHOM_RETURN_IF_ERROR(tokens->CheckDocuments());
  return tokens;
}

absl::Status MegatronTokens::Damaged(const std::string& what) const {
  return absl::DataLossError(absl::StrCat(idx_path_, " ", what));
}

absl::Status MegatronTokens::ParseHead() {
  const std::string_view idx = idx_->contents();
  if (!idx.starts_with(megatron_format::kMagic)) {
    return Damaged("is not the index of a Megatron data set (it does not begin as one)");
  }
  if (idx.size() < kHeadSize) return Damaged("is truncated inside its head");
  const uint64_t version = Load<uint64_t>(&idx[9]);
  if (version != megatron_format::kVersion) {
    return Damaged(absl::StrCat("has version ", version, " of the format, and only ",
                                megatron_format::kVersion, " can be read"));
  }
  const int code = static_cast<uint8_t>(idx[17]);
  if (code != megatron_format::kUint16 && code != megatron_format::kInt32) {
    return Damaged(absl::StrCat("has tokens of type code ", code,
                                ", where 8 (uint16) and 4 (int32) can be read"));
  }
  width_ = code == megatron_format::kUint16 ? 2 : 4;
  const uint64_t sequences = Load<uint64_t>(&idx[18]);
  const uint64_t boundaries = Load<uint64_t>(&idx[26]);
  const uint64_t body = idx.size() - kHeadSize;
  if (sequences > body / 12 || boundaries > body / 8) {
    return Damaged(absl::StrCat("has ", idx.size(), " bytes, too few for its ", sequences,
                                " sequences and ", boundaries, " document boundaries"));
  }
  const uint64_t needed = 12 * sequences + 8 * boundaries;
  // Data sets of several modalities have a byte more for each sequence.
  if (body != needed && body != needed + sequences) {
    return Damaged(absl::StrCat("has ", idx.size(), " bytes, which does not fit its ", sequences,
                                " sequences and ", boundaries, " document boundaries"));
  }
  if (boundaries < 2 || sequences == 0) return Damaged("holds no documents");
  sequences_ = sequences;
  documents_ = boundaries - 1;
  lengths_ = idx.data() + kHeadSize;
  offsets_ = lengths_ + 4 * sequences_;
  documents_at_ = offsets_ + 8 * sequences_;
  return absl::OkStatus();
}

absl::Status MegatronTokens::CheckSequences() {
  const int64_t size = bin_->size();
  int64_t end = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = Load<int32_t>(lengths_ + 4 * i);
    const int64_t offset = Load<int64_t>(offsets_ + 8 * i);
    if (length < 0 || offset != end) {
      return Damaged(absl::StrCat("is damaged: its sequence ", i, " has ", length,
                                  " tokens at byte ", offset, ", where byte ", end, " is next"));
    }
    end += length * width_;
    if (end > size) {
      return Damaged(absl::StrCat("does not match ", bin_path_, ", which has ", size,
                                  " bytes where sequence ", i, " ends at byte ", end));
    }
  }
  if (end != size) {
    return Damaged(absl::StrCat("does not match ", bin_path_, ", which has ", size,
                                " bytes where the sequences take ", end));
  }
  tokens_ = end / width_;
  return tokens_ > 0 ? absl::OkStatus() : Damaged("holds no tokens");
}

absl::Status MegatronTokens::CheckDocuments() const {
  int64_t previous = 0;
  for (int64_t i = 0; i <= documents_; ++i) {
    const int64_t at = Load<int64_t>(documents_at_ + 8 * i);
    if (at < previous || at > sequences_ || (i == 0 && at != 0)) {
      return Damaged(absl::StrCat("is damaged: document boundary ", i, " lies at sequence ", at,
                                  " of ", sequences_));
    }
    previous = at;
  }
  if (previous != sequences_) {
    return Damaged(absl::StrCat("is damaged: its last document ends at sequence ", previous, " of ",
                                sequences_));
  }
  return absl::OkStatus();
}

int64_t MegatronTokens::DocumentEnd(int64_t document) const {
  FATHOM_CHECK(document >= 0 && document < documents_);
  const int64_t sequence = Load<int64_t>(documents_at_ + 8 * (document + 1));
  return sequence == sequences_ ? tokens_ : Load<int64_t>(offsets_ + 8 * sequence) / width_;
}

absl::Status MegatronTokens::CheckUnchanged() const {
  FATHOM_RETURN_IF_ERROR(idx_->CheckUnchanged());
  return bin_->CheckUnchanged();
}

void MegatronTokens::Read(int64_t begin, int64_t count, int32_t* out) const {
  FATHOM_CHECK(begin >= 0 && count >= 0 && count <= tokens_ - begin);
  token_format::LoadTokens(bin_->contents().data() + begin * width_, width_, count, out);
}

}  // namespace fathom
