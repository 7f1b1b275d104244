#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace fathom {

// XXH3, 64 bits: guards files against damage, not against forgery.
uint64_t Checksum(std::string_view data);

// The checksum of data that arrives in pieces.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  void Add(std::string_view data);
  // Of all that has been added so far.
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 lower-case hexadecimal digits.
std::string Hex(uint64_t value);

}  // namespace fathom
