#pragma once

#include <sstream>

// FATHOM_CHECK(condition) << "more": a programmer's error ends the process with file, line and
// condition. What a user can cause is an absl::Status instead.
#define FATHOM_CHECK(condition)          \
  if (__builtin_expect(!(condition), 0)) \
  ::fathom::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define FATHOM_CHECK_EQ(a, b) FATHOM_CHECK((a) == (b)) << "(" << (a) << " against " << (b) << ") "

namespace fathom::internal {

// Collects the message and aborts when it is destroyed at the end of the statement.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

}  // namespace fathom::internal
