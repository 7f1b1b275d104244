#include "runtime/data/llmc_file.h"

#include "core/check.h"
#include "core/status.h"
#include "runtime/data/token_format.h"

namespace fathom {
namespace {

using token_format::Load;

struct Kind {
  int32_t magic;
  int32_t version;
  int64_t width;  // bytes per token
};
constexpr Kind kKinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
constexpr int64_t kHeadSize = 256 * 4;

const Kind* FindKind(std::string_view contents) {
  if (contents.size() < 4) return nullptr;
  for (const Kind& kind : kKinds) {
    if (Load<int32_t>(contents.data()) == kind.magic) return &kind;
  }
  return nullptr;
}

}  // namespace

bool LlmcTokens::HasMagic(std::string_view contents) { return FindKind(contents) != nullptr; }

absl::StatusOr<std::unique_ptr<LlmcTokens>> LlmcTokens::Open(FileSystem& files,
                                                             const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.OpenForRead(path));
  const std::string_view data = file->contents();
  const auto damaged = [&path](const std::string& what) {
    return absl::DataLossError(absl::StrCat(path, " ", what));
  };
  const Kind* kind = FindKind(data);
  if (kind == nullptr) {
    return damaged("is not a token file of llm.c (it begins with neither 20240520 nor 20240801)");
  }
  if (data.size() < kHeadSize) return damaged("is truncated inside its head of 1024 bytes");
  const int32_t version = Load<int32_t>(&data[4]);
  if (version != kind->version) {
    return damaged(absl::StrCat("has version ", version, " of llm.c's format ", kind->magic,
                                ", and only ", kind->version, " can be read"));
  }
  const int64_t count = Load<int32_t>(&data[8]);
  if (count < 1) return damaged(absl::StrCat("has a count of ", count, " tokens"));
  const int64_t size = data.size();
  if (size != kHeadSize + count * kind->width) {
    return damaged(absl::StrCat("has ", size, " bytes, where its ", count, " tokens take ",
                                kHeadSize + count * kind->width));
  }
  std::unique_ptr<LlmcTokens> tokens(new LlmcTokens(path, std::move(file)));
  tokens->width_ = kind->width;
  tokens->tokens_ = count;
  return tokens;
}

int64_t LlmcTokens::DocumentEnd(int64_t document) const {
  FATHOM_CHECK_EQ(document, 0);
  return tokens_;
}

void LlmcTokens::Read(int64_t begin, int64_t count, int32_t* out) const {
  FATHOM_CHECK(begin >= 0 && count >= 0 && count <= tokens_ - begin);
  token_format::LoadTokens(file_->contents().data() + kHeadSize + begin * width_, width_, count,
                           out);
}

}  // namespace fathom
