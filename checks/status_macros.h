// Errors of absl::Status and absl::StatusOr that are handed on as they are, or cannot be.
//
//   KVBLOCKS_RETURN_IF_ERROR(sink->Close());
//   KVBLOCKS_ASSIGN_OR_RETURN(const auto reader, OpenTrace(path, options));

#ifndef KVBLOCKS_CHECKS_STATUS_MACROS_H_
#define KVBLOCKS_CHECKS_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "kvblocks/check.h"

#define KVBLOCKS_STATUS_CONCAT_(a, b) a##b
#define KVBLOCKS_STATUS_NAME_(prefix, line) KVBLOCKS_STATUS_CONCAT_(prefix, line)

#define KVBLOCKS_RETURN_IF_ERROR(...) \
  KVBLOCKS_RETURN_IF_ERROR_(KVBLOCKS_STATUS_NAME_(status_of_line_, __LINE__), __VA_ARGS__)
#define KVBLOCKS_RETURN_IF_ERROR_(status, ...)                            \
  do {                                                                    \
    if (absl::Status status = (__VA_ARGS__); !status.ok()) return status; \
  } while (false)

// `declaration`: a variable, declared here or before.
#define KVBLOCKS_ASSIGN_OR_RETURN(declaration, ...)                                        \
  KVBLOCKS_ASSIGN_OR_RETURN_(KVBLOCKS_STATUS_NAME_(value_of_line_, __LINE__), declaration, \
                             __VA_ARGS__)
#define KVBLOCKS_ASSIGN_OR_RETURN_(value, declaration, ...) \
  auto value = (__VA_ARGS__);                               \
  if (!value.ok()) return std::move(value).status();        \
  declaration = *std::move(value)

// Stops the process: an operation failed that no input can make fail.
#define KVBLOCKS_CHECK_OK(...)                        \
  do {                                                \
    const absl::Status checked = (__VA_ARGS__);       \
    KVBLOCKS_CHECK(checked.ok(), checked.ToString()); \
  } while (false)

#endif  // KVBLOCKS_CHECKS_STATUS_MACROS_H_
