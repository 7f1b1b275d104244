#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/file.h"

namespace fathom {

// The bytes of one text, in pieces: a file, plain or compressed by gzip or zstd (told by its first
// bytes, 1f 8b and 28 b5 2f fd; of one or many members or frames), or standard input, which may be
// any of these as well.
class TextInput {
 public:
  virtual ~TextInput() = default;
  // `path` "-" is standard input. NotFound for a missing file.
  static absl::StatusOr<std::unique_ptr<TextInput>> Open(FileSystem& files,
                                                         const std::string& path);

  // The next piece, empty at the end; valid until the next call. DataLoss, naming the file, for
  // compressed data that is corrupt or truncated.
  virtual absl::StatusOr<std::string_view> Next() = 0;
  // Bytes read so far as they are stored, that is, before decompression.
  virtual int64_t stored_bytes() const = 0;
};

}  // namespace fathom
