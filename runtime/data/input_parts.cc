#include "runtime/data/input_parts.h"

#include <algorithm>
#include <utility>

#include "core/status.h"

namespace fathom {
namespace {

constexpr int64_t kPartSize = int64_t{1} << 20;

bool DropSuffix(std::string_view suffix, std::string_view* name) {
  if (name->size() <= suffix.size() || !name->ends_with(suffix)) return false;
  name->remove_suffix(suffix.size());
  return true;
}

}  // namespace

bool IsNamedAsJsonLines(std::string_view path) {
  if (!DropSuffix(".gz", &path)) DropSuffix(".zst", &path);
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

InputParts::InputParts(FileSystem& files, std::vector<std::string> inputs, Options options)
    : files_(files), inputs_(std::move(inputs)), options_(std::move(options)) {
  for (const std::string& path : inputs_) {
    const auto file = path == "-" ? absl::NotFoundError("") : files_.OpenForRead(path);
    if (!file.ok()) {  // a file that is missing is an error when its turn comes
      stored_total_ = 0;
      return;
    }
    stored_total_ += (*file)->size();
  }
}

int64_t InputParts::stored_bytes() const {
  return stored_before_ + (input_ == nullptr ? 0 : input_->stored_bytes());
}

absl::Status InputParts::Open() {
  const std::string& path = inputs_[next_++];
  FATHOM_ASSIGN_OR_RETURN(input_, TextInput::Open(files_, path));
  json_lines_ = options_.json_lines || (path != "-" && IsNamedAsJsonLines(path));
  offset_ = 0;
  line_ = 1;
  held_.clear();
  return absl::OkStatus();
}

// Reads one piece of the open input. False at its end.
absl::StatusOr<bool> InputParts::Fill() {
  if (offset_ >= options_.end_byte) return false;
  FATHOM_ASSIGN_OR_RETURN(const std::string_view piece, input_->Next());
  if (piece.empty()) return false;
  const int64_t piece_begin = std::exchange(offset_, offset_ + piece.size());
  const int64_t begin = std::max(options_.begin_byte, piece_begin);
  const int64_t end = std::min(options_.end_byte, offset_);
  if (begin < end) held_.append(piece.substr(begin - piece_begin, end - begin));
  return true;
}

int64_t InputParts::Cut() const {
  if (!json_lines_) return options_.last_cut(held_);
  return static_cast<int64_t>(held_.rfind('\n') + 1);
}

void InputParts::Emit(int64_t size, InputPart* part) {
  std::string rest = held_.substr(size);
  part->bytes = std::move(held_);
  part->bytes.resize(size);
  part->bytes.resize(size + InputPart::kPadding);
  part->size = size;
  const std::string& path = inputs_[next_ - 1];
  part->source = path == "-" ? "standard input" : path;
  part->first_line = json_lines_ ? line_ : 0;
  part->ends_document = false;
  if (json_lines_) line_ += std::count(part->text().begin(), part->text().end(), '\n');
  held_ = std::move(rest);
}

absl::StatusOr<bool> InputParts::Next(InputPart* part) {
  if (input_ == nullptr) {
    if (next_ == inputs_.size()) return false;
    FATHOM_RETURN_IF_ERROR(Open());
  }
  int64_t wanted = kPartSize;
  while (true) {
    FATHOM_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
    if (static_cast<int64_t>(held_.size()) < wanted) continue;
    if (const int64_t cut = Cut(); cut > 0) {
      Emit(cut, part);
      return true;
    }
    // Looking for a cut takes time in proportion to what is held, so it is done ever less often.
    wanted = 2 * held_.size();
  }
  Emit(held_.size(), part);
  part->ends_document = !json_lines_;
  stored_before_ += input_->stored_bytes();
  input_ = nullptr;
  return true;
}

}  // namespace fathom
