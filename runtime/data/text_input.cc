#include "runtime/data/text_input.h"

#include <zlib.h>
#include <zstd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/status.h"

namespace fathom {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

class FileInput final : public TextInput {
 public:
  explicit FileInput(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
  absl::StatusOr<std::string_view> Next() override {
    const std::string_view piece = file_->contents().substr(offset_, kPiece);
    offset_ += piece.size();
    return piece;
  }
  int64_t stored_bytes() const override { return offset_; }

 private:
  std::unique_ptr<ReadableFile> file_;
  size_t offset_ = 0;
};

class StandardInput final : public TextInput {
 public:
  absl::StatusOr<std::string_view> Next() override {
    buffer_.resize(kPiece);
    const size_t read = std::fread(buffer_.data(), 1, buffer_.size(), stdin);
    if (std::ferror(stdin)) return absl::DataLossError("cannot read standard input");
    stored_bytes_ += read;
    return std::string_view(buffer_.data(), read);
  }
  int64_t stored_bytes() const override { return stored_bytes_; }

 private:
  std::vector<char> buffer_;
  int64_t stored_bytes_ = 0;
};

// Decompresses the gzip members of another input. zlib checks each member's length and CRC.
class GzipInput final : public TextInput {
 public:
  GzipInput(std::unique_ptr<TextInput> stored, std::string_view first, std::string name)
      : stored_(std::move(stored)), name_(std::move(name)), buffer_(kPiece) {
    SetInput(first);
    FATHOM_CHECK_EQ(inflateInit2(&stream_, kGzipWindow), Z_OK);
  }
  ~GzipInput() override { inflateEnd(&stream_); }

  absl::StatusOr<std::string_view> Next() override {
    stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
    stream_.avail_out = buffer_.size();
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) {
        FATHOM_ASSIGN_OR_RETURN(const std::string_view piece, stored_->Next());
        if (piece.empty()) break;
        SetInput(piece);
      }
      if (!in_member_) {
        if (padded_ || *stream_.next_in == 0) {
          FATHOM_RETURN_IF_ERROR(SkipPadding());
          continue;
        }
        FATHOM_CHECK_EQ(inflateReset(&stream_), Z_OK);
        in_member_ = true;
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        in_member_ = false;
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return Corrupt(stream_.msg != nullptr ? stream_.msg : "it needs a preset dictionary");
      }
    }
    const size_t size = buffer_.size() - stream_.avail_out;
    if (size == 0 && in_member_) {
      return absl::DataLossError(absl::StrCat(name_, " is truncated gzip data"));
    }
    return std::string_view(buffer_.data(), size);
  }
  int64_t stored_bytes() const override { return stored_->stored_bytes() - stream_.avail_in; }

 private:
  static constexpr int kGzipWindow = 15 + 16;  // zlib's "largest window, gzip frame"

  void SetInput(std::string_view piece) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    stream_.avail_in = piece.size();
  }

  absl::Status Corrupt(const char* reason) const {
    return absl::DataLossError(absl::StrCat(name_, " is corrupt gzip data: ", reason));
  }

  // Tapes and block devices pad the end with zeros, which gzip tools ignore.
  absl::Status SkipPadding() {
    padded_ = true;
    for (; stream_.avail_in > 0; --stream_.avail_in, ++stream_.next_in) {
      if (*stream_.next_in != 0) return Corrupt("something that is not gzip follows its end");
    }
    return absl::OkStatus();
  }

  std::unique_ptr<TextInput> stored_;
  std::string name_;
  std::vector<char> buffer_;
  z_stream stream_ = {};
  bool in_member_ = true;
  bool padded_ = false;
};

// Decompresses the zstd frames of another input.
class ZstdInput final : public TextInput {
 public:
  ZstdInput(std::unique_ptr<TextInput> stored, std::string_view first, std::string name)
      : stored_(std::move(stored)),
        name_(std::move(name)),
        buffer_(kPiece),
        stream_(ZSTD_createDCtx()),
        input_{first.data(), first.size(), 0} {
    FATHOM_CHECK(stream_ != nullptr);
    // Windows of up to 2 GiB, which `zstd --ultra --long=31` writes; the memory is only taken when
    // a frame asks for it.
    FATHOM_CHECK(!ZSTD_isError(ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31)));
  }
  ~ZstdInput() override { ZSTD_freeDCtx(stream_); }

  absl::StatusOr<std::string_view> Next() override {
    ZSTD_outBuffer output = {buffer_.data(), buffer_.size(), 0};
    while (output.pos < output.size) {
      if (input_.pos == input_.size && !output_left_) {
        FATHOM_ASSIGN_OR_RETURN(const std::string_view piece, stored_->Next());
        if (piece.empty()) break;
        input_ = {piece.data(), piece.size(), 0};
      }
      const size_t wanted = ZSTD_decompressStream(stream_, &output, &input_);
      if (ZSTD_isError(wanted)) {
        return absl::DataLossError(
            absl::StrCat(name_, " is corrupt zstd data: ", ZSTD_getErrorName(wanted)));
      }
      in_frame_ = wanted != 0;
      output_left_ = in_frame_ && output.pos == output.size;
    }
    if (output.pos == 0 && in_frame_) {
      return absl::DataLossError(absl::StrCat(name_, " is truncated zstd data"));
    }
    return std::string_view(buffer_.data(), output.pos);
  }
  int64_t stored_bytes() const override {
    return stored_->stored_bytes() - (input_.size - input_.pos);
  }

 private:
  std::unique_ptr<TextInput> stored_;
  std::string name_;
  std::vector<char> buffer_;
  ZSTD_DCtx* stream_;
  ZSTD_inBuffer input_;
  bool in_frame_ = true;
  bool output_left_ = false;  // the stream may hold more than fitted the buffer
};

// Gives a piece back that has been read to look at it.
class PlainInput final : public TextInput {
 public:
  PlainInput(std::unique_ptr<TextInput> stored, std::string_view first)
      : stored_(std::move(stored)), first_(first) {}
  absl::StatusOr<std::string_view> Next() override {
    if (!first_.empty()) return std::exchange(first_, std::string_view());
    return stored_->Next();
  }
  int64_t stored_bytes() const override { return stored_->stored_bytes() - first_.size(); }

 private:
  std::unique_ptr<TextInput> stored_;
  std::string_view first_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TextInput>> TextInput::Open(FileSystem& files,
                                                           const std::string& path) {
  std::unique_ptr<TextInput> stored;
  if (path == "-") {
    stored = std::make_unique<StandardInput>();
  } else {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.OpenForRead(path));
    stored = std::make_unique<FileInput>(std::move(file));
  }
  const std::string name = path == "-" ? "standard input" : path;
  FATHOM_ASSIGN_OR_RETURN(const std::string_view first, stored->Next());
  if (first.substr(0, 2) == "\x1f\x8b") {
    return std::make_unique<GzipInput>(std::move(stored), first, name);
  }
  // A frame, or a skippable one, which parallel compressors put first.
  if (first.substr(0, 4) == "\x28\xb5\x2f\xfd" ||
      (first.size() > 4 && (first[0] & 0xf0) == 0x50 && first.substr(1, 3) == "\x2a\x4d\x18")) {
    return std::make_unique<ZstdInput>(std::move(stored), first, name);
  }
  return std::make_unique<PlainInput>(std::move(stored), first);
}

}  // namespace fathom
