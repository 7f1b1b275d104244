#pragma once

#include <vector>

#include "core/buffer.h"

namespace fathom {

// Memory for activations: allocated upwards, given back in reverse order down to a mark. Not
// thread-safe. Blocks come from the device as they are needed and stay until the arena dies, so a
// training step allocates from the device only the first time.
class Arena {
 public:
  struct Mark {
    size_t block;
    int64_t used;    // of that block
    int64_t in_use;  // of the arena
  };

  // `block_bytes`: what is asked of the device at a time.
  explicit Arena(Device& device, int64_t block_bytes = int64_t{64} << 20);

  // Contents undefined, aligned to 64 bytes. Out of memory is fatal: a run's peak is known from
  // `fathom inspect` before it starts.
  Tensor New(DType dtype, Shape shape);

  Mark mark() const { return {block_, used_, in_use_}; }
  // Gives back all that was allocated since `mark`.
  void Release(const Mark& mark);

  int64_t bytes_in_use() const { return in_use_; }
  // The most that was in use at any time.
  int64_t peak_bytes() const { return peak_; }

 private:
  Device& device_;
  int64_t block_bytes_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;  // the block that is being filled
  int64_t used_ = 0;  // bytes used of it
  int64_t in_use_ = 0;
  int64_t peak_ = 0;
};

// Gives back, at the end of its scope, what was allocated inside it.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.Release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace fathom
