#include "parallel/keep_buffer.h"

#include <mutex>
#include <utility>
#include <vector>

namespace fathom {

void KeepForEver(Buffer buffer) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<Buffer>;
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(std::move(buffer));
}

}  // namespace fathom
