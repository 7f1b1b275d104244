#include "runtime/data/open_tokens.h"

#include "core/status.h"
#include "runtime/checksum.h"
#include "runtime/data/llmc_file.h"
#include "runtime/data/megatron_files.h"
#include "runtime/data/megatron_format.h"
#include "runtime/data/token_file.h"
#include "runtime/data/token_format.h"

namespace fathom {
namespace {

bool IsFile(FileSystem& files, const std::string& path) {
  return files.Exists(path) && !files.IsDirectory(path);
}

// `path` without its extension ".bin" or ".idx".
std::string Stem(const std::string& path) { return path.substr(0, path.size() - 4); }

absl::StatusOr<std::unique_ptr<TokenSource>> OpenByContents(FileSystem& files,
                                                            const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const auto file, files.OpenForRead(path));
  if (LlmcTokens::HasMagic(file->contents())) return LlmcTokens::Open(files, path);
  if (file->contents().starts_with(megatron_format::kMagic)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " is the index of a Megatron data set, whose name should end in .idx, beside a .bin"));
  }
  if (path.ends_with(".bin") && !file->contents().starts_with(token_format::kMagic)) {
    return absl::DataLossError(
        absl::StrCat(path, " is no token file of llm.c (it does not begin as one), and ",
                     Stem(path), ".idx, which would make it Megatron's, is missing"));
  }
  return TokenFile::Open(files, path);
}

}  // namespace

absl::StatusOr<std::string> ResolveTokens(FileSystem& files, const std::string& path) {
  for (const char* extension : {"", token_format::kExtension, ".idx", ".bin"}) {
    const std::string candidate = absl::StrCat(path, extension);
    if (IsFile(files, candidate)) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("there is no token file ", path, " or ", path,
                                          token_format::kExtension,
                                          " (or .bin and .idx); `fathom prepare` makes one of "
                                          "text"));
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(FileSystem& files,
                                                        const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string resolved, ResolveTokens(files, path));
  const bool bin_or_idx = resolved.ends_with(".bin") || resolved.ends_with(".idx");
  if (bin_or_idx && IsFile(files, absl::StrCat(Stem(resolved), ".idx"))) {
    return MegatronTokens::Open(files, Stem(resolved));
  }
  return OpenByContents(files, resolved);
}

absl::Status CheckTokenizer(const TokenSource& source, uint64_t tokenizer_hash,
                            const std::string& whose) {
  if (source.tokenizer_hash() == 0 || tokenizer_hash == 0 ||
      source.tokenizer_hash() == tokenizer_hash) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      source.path(), " was made with another tokenizer than ", whose, ": their hashes are ",
      Hex(source.tokenizer_hash()), " and ", Hex(tokenizer_hash)));
}

}  // namespace fathom
