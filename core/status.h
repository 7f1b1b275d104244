#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns from the enclosing function when `expression` is not OK.
#define FATHOM_RETURN_IF_ERROR(expression)                                \
  do {                                                                    \
    if (absl::Status fathom_status = (expression); !fathom_status.ok()) { \
      return fathom_status;                                               \
    }                                                                     \
  } while (false)

// FATHOM_ASSIGN_OR_RETURN(auto x, Function()): x is the value, or the enclosing function returns
// the error.
#define FATHOM_ASSIGN_OR_RETURN(left, expression) \
  FATHOM_ASSIGN_OR_RETURN_(FATHOM_CONCAT_(fathom_status_or_, __LINE__), left, expression)
#define FATHOM_ASSIGN_OR_RETURN_(result, left, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return result.status();                \
  left = std::move(result).value()
#define FATHOM_CONCAT_(a, b) FATHOM_CONCAT_INNER_(a, b)
#define FATHOM_CONCAT_INNER_(a, b) a##b
