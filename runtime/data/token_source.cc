#include "runtime/data/token_source.h"

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace fathom {

absl::Status ReadChecked(const TokenSource& source, int64_t begin, int64_t count,
                         int64_t vocabulary, int32_t* out) {
  FATHOM_CHECK(begin >= 0 && count >= 0 && count <= source.tokens() - begin);
  if (absl::Status status = source.CheckUnchanged(); !status.ok()) return status;
  source.Read(begin, count, out);
  for (int64_t i = 0; i < count; ++i) {
    // A four-byte token of 2^31 or more arrives as a negative number.
    const uint32_t token = static_cast<uint32_t>(out[i]);
    if (token >= vocabulary) {
      return absl::OutOfRangeError(absl::StrCat(source.path(), " holds token ", token,
                                                " at offset ", begin + i,
                                                ", but the model's vocabulary is ", vocabulary));
    }
  }
  return absl::OkStatus();
}

}  // namespace fathom
