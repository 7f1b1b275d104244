#include "runtime/data/token_format.h"

#include "runtime/checksum.h"

namespace fathom::token_format {

uint64_t FrameChecksum(std::string_view head, std::string_view table, std::string_view footer) {
  ChecksumStream stream;
  for (const std::string_view part : {head, table, footer}) stream.Add(part);
  return stream.value();
}

}  // namespace fathom::token_format
