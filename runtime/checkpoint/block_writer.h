#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file.h"
#include "runtime/checkpoint/manifest.h"

namespace fathom {

// Passes data on to a file block by block, and keeps their checksums.
class BlockWriter final : public WritableFile {
 public:
  explicit BlockWriter(std::unique_ptr<WritableFile> file);

  absl::Status Append(std::string_view data) override;
  // Data of a last block that is not full is passed on; more may follow only when there was none.
  absl::Status Sync() override;
  absl::Status Close() override;

  int64_t size() const { return size_; }
  // Of all blocks, once the file is closed.
  const std::vector<uint64_t>& blocks() const { return blocks_; }

 private:
  absl::Status WriteBlock(std::string_view block);
  absl::Status Flush();

  std::unique_ptr<WritableFile> file_;
  std::string pending_;  // shorter than a block
  int64_t size_ = 0;
  std::vector<uint64_t> blocks_;
};

}  // namespace fathom
