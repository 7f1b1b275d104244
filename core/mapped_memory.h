#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>

namespace fathom {

// Brings bytes of a mapped file into memory at once, rather than page by page as they are touched.
// Nothing depends on it but time: a kernel before 5.14 refuses, and touching them has to do.
inline void FetchMapped(std::string_view bytes) {
  static const uintptr_t page = ::sysconf(_SC_PAGESIZE);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t first = begin / page * page;
  ::madvise(reinterpret_cast<void*>(first), begin + bytes.size() - first, MADV_POPULATE_READ);
}

}  // namespace fathom
