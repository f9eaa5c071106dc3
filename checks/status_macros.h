// Early returns for functions that return a Status or a StatusOr.

#ifndef KVBLOCKS_CHECKS_STATUS_MACROS_H_
#define KVBLOCKS_CHECKS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"

// Returns the status that the expression gives, unless it is OK.
#define KVBLOCKS_RETURN_IF_ERROR(...) \
  if (absl::Status error = (__VA_ARGS__); !error.ok()) return error

// Declares `variable`, type included, as the value of a StatusOr; returns the status if it has none.
#define KVBLOCKS_ASSIGN_OR_RETURN(variable, ...) \
  KVBLOCKS_ASSIGN_OR_RETURN_AS(KVBLOCKS_STATUS_OR_OF(__LINE__), variable, __VA_ARGS__)
#define KVBLOCKS_ASSIGN_OR_RETURN_AS(status_or, variable, ...) \
  auto status_or = (__VA_ARGS__);                              \
  if (!status_or.ok()) return status_or.status();              \
  variable = *std::move(status_or)
#define KVBLOCKS_STATUS_OR_OF(line) KVBLOCKS_STATUS_OR_OF_LINE(line)
#define KVBLOCKS_STATUS_OR_OF_LINE(line) status_or_of_line_##line

#endif  // KVBLOCKS_CHECKS_STATUS_MACROS_H_
