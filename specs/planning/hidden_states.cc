#include "kvblocks/specs/planning/hidden_states.h"

#include <algorithm>
#include <string>

namespace kvblocks {
namespace {

// The largest divisor of `number` that is at most `limit`. REQUIRES: both are at least 1.
int64_t LargestDivisor(int64_t number, int64_t limit) {
  int64_t largest = 1;
  for (int64_t low = 1; low <= number / low; ++low) {
    if (number % low != 0) continue;
    for (const int64_t divisor : {low, number / low}) {
      if (divisor <= limit) largest = std::max(largest, divisor);
    }
  }
  return largest;
}

}  // namespace

std::optional<KvCacheSpec> FitHiddenState(const LayerCache& cache, int64_t block_unit,
                                          int64_t page_bytes, std::vector<PlanError>* errors) {
  const int64_t row_bytes = cache.spec.unpadded_page_bytes() / cache.spec.block_size();
  std::string reason = "one token has " + std::to_string(row_bytes) + " bytes";
  if (row_bytes <= page_bytes) {
    KvCacheSpecOptions options = cache.spec.options();
    options.block_size = LargestDivisor(block_unit, page_bytes / row_bytes);
    options.page_size_padded = page_bytes;
    absl::StatusOr<KvCacheSpec> fitted = cache.spec.WithOptions(options);
    if (fitted.ok()) return *std::move(fitted);
    reason = std::string(fitted.status().message());
  }
  errors->push_back({.code = PlanErrorCode::kPagesDoNotEqualise,
                     .message = "hidden-state layer \"" + cache.name +
                                "\" does not fit the common page of " + std::to_string(page_bytes) +
                                " bytes: " + reason + "; use larger blocks, or the native layout",
                     .layers = {cache.name},
                     .needed = row_bytes,
                     .available = page_bytes});
  return std::nullopt;
}

}  // namespace kvblocks
