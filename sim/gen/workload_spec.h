// A workload's text: read, checked, and printed.
//
// The form is protobuf's text format (workload.proto), begun by `workload: "NAME"`. Errors say
// FILE:LINE:COLUMN: error: FIELD: got VALUE, expected WHAT.

#ifndef KVBLOCKS_SIM_GEN_WORKLOAD_SPEC_H_
#define KVBLOCKS_SIM_GEN_WORKLOAD_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/gen/workload.pb.h"

namespace kvblocks::sim {

// No prompt is longer, and no piece of one: a session ends before.
inline constexpr int64_t kMostPromptTokens = int64_t{1} << 24;

// Whether a file that begins like this, behind comments and blanks, is one.
bool LooksLikeWorkload(std::string_view line);

absl::StatusOr<workload::v1::Workload> ParseWorkload(std::string_view text, std::string_view file);
// What ParseWorkload checks beyond the syntax, and what it fills in: nothing.
absl::Status CheckWorkload(const workload::v1::Workload& workload);
// In [low, high], whatever is drawn.
absl::Status CheckDistribution(const workload::v1::Distribution& shape, double low, double high);

// What ParseWorkload reads back as it is.
std::string PrintWorkload(const workload::v1::Workload& workload);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_WORKLOAD_SPEC_H_
