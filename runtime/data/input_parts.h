#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/text_input.h"

namespace fathom {

// A stretch of an input that can be made tokens by itself: a part of a text, or whole JSON lines.
struct InputPart {
  // Bytes behind `size` that may be read, and are zero, for parsers that read ahead.
  static constexpr int64_t kPadding = 64;

  std::string bytes;  // [size + kPadding]
  int64_t size = 0;
  std::string source;          // the input's name, for messages
  int64_t first_line = 0;      // JSON lines: the number of its first line, from 1; 0: text
  bool ends_document = false;  // text: nothing of it follows

  std::string_view text() const { return std::string_view(bytes).substr(0, size); }
};

// Whether a file of this name holds JSON lines: .jsonl, .ndjson or .json, and .gz or .zst behind.
bool IsNamedAsJsonLines(std::string_view path);

// Cuts inputs into parts of about 1 MiB, in order.
class InputParts {
 public:
  struct Options {
    bool json_lines = false;  // all inputs are; else those whose names say so
    // The largest offset at which a text may be cut, 0 for nowhere: Tokenizer::LastCut.
    std::function<int64_t(std::string_view)> last_cut;
    // Only these bytes of each decompressed input.
    int64_t begin_byte = 0;
    int64_t end_byte = std::numeric_limits<int64_t>::max();
  };
  // `inputs`: paths, or "-" for standard input.
  InputParts(FileSystem& files, std::vector<std::string> inputs, Options options);

  // False at the end of the last input. A text without a place to cut, and a line, comes whole,
  // however long.
  absl::StatusOr<bool> Next(InputPart* part);

  // Bytes read so far as they are stored, of stored_total() (0: not known, for standard input).
  int64_t stored_bytes() const;
  int64_t stored_total() const { return stored_total_; }

 private:
  absl::Status Open();
  absl::StatusOr<bool> Fill();
  int64_t Cut() const;
  void Emit(int64_t size, InputPart* part);

  FileSystem& files_;
  const std::vector<std::string> inputs_;
  const Options options_;
  int64_t stored_total_ = 0;
  int64_t stored_before_ = 0;  // of the inputs that are done
  size_t next_ = 0;            // the input to open next
  std::unique_ptr<TextInput> input_;
  bool json_lines_ = false;  // of the open input
  int64_t offset_ = 0;       // decompressed bytes read of it
  int64_t line_ = 0;
  std::string held_;  // read, and not yet in a part
};

}  // namespace fathom
