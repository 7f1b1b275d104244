#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/model/micro_batch.h"

namespace fathom {

// Writes the loss of every counted token as JSON lines {"sequence": s, "position": t, "label": y,
// "loss": l}: label y is the token after position t of validation sample s, both from 0, the loss
// in nats with 17 significant digits. Written aside; Close gives the file its name.
class TokenLossWriter {
 public:
  static absl::StatusOr<std::unique_ptr<TokenLossWriter>> Create(FileSystem& files,
                                                                 const std::string& path);
  // Removes the file unless it was closed.
  ~TokenLossWriter();

  // `first_sequence`: the number of the batch's first sample; losses [B * L].
  absl::Status Write(int64_t first_sequence, const HostBatch& host,
                     const std::vector<double>& losses);
  absl::Status Close();

 private:
  TokenLossWriter(FileSystem& files, std::string path, std::string temporary,
                  std::unique_ptr<WritableFile> file)
      : files_(files),
        path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(std::move(file)) {}

  FileSystem& files_;
  std::string path_;
  std::string temporary_;
  std::unique_ptr<WritableFile> file_;
  bool closed_ = false;
};

}  // namespace fathom
