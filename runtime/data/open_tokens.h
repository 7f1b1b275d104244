#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/token_source.h"

namespace fathom {

// Opens a token file of any format that can be read, and checks all but its tokens. `path` is
//   NAME.tokens, or NAME    Fathom's own
//   NAME.bin, NAME.idx, or NAME with both beside    Megatron-LM's
//   NAME.bin without an .idx, or NAME    llm.c's
// A file of another name is told by its first bytes. NotFound when there is none of these, DataLoss
// for one that is damaged, FailedPrecondition for a version newer than this program.
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(FileSystem& files, const std::string& path);

// The name that OpenTokens would open: NotFound when there is none.
absl::StatusOr<std::string> ResolveTokens(FileSystem& files, const std::string& path);

// Refuses (InvalidArgument) tokens of another tokenizer than the one of this hash
// (Tokenizer::hash), where both are known, that is, not 0. `whose` it is, for the message.
absl::Status CheckTokenizer(const TokenSource& source, uint64_t tokenizer_hash,
                            const std::string& whose);

}  // namespace fathom
