#include "runtime/checksum.h"

#include "absl/strings/str_cat.h"
#include "core/check.h"
#if defined(__x86_64__)
#include "xxh_x86dispatch.h"  // the widest vectors that this processor has
#else
#include "xxhash.h"
#endif

namespace fathom {

struct ChecksumStream::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  ~State() { XXH3_freeState(xxh3); }
};

uint64_t Checksum(std::string_view data) { return XXH3_64bits(data.data(), data.size()); }

ChecksumStream::ChecksumStream() : state_(std::make_unique<State>()) {
  FATHOM_CHECK(state_->xxh3 != nullptr);
  XXH3_64bits_reset(state_->xxh3);
}

ChecksumStream::~ChecksumStream() = default;

void ChecksumStream::Add(std::string_view data) {
  XXH3_64bits_update(state_->xxh3, data.data(), data.size());
}

uint64_t ChecksumStream::value() const { return XXH3_64bits_digest(state_->xxh3); }

std::string Hex(uint64_t value) { return absl::StrCat(absl::Hex(value, absl::kZeroPad16)); }

}  // namespace fathom
