#pragma once

#include <cstdint>
#include <span>

#include "runtime/data/unicode_classes.h"

namespace fathom {

struct CodePointRange {
  uint32_t first, last;  // both belong to it
};

// All code points of a class, ascending; none for kOther, which is the rest.
std::span<const CodePointRange> UnicodeRanges(CharClass char_class);

}  // namespace fathom
