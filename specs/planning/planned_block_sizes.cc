#include "kvblocks/specs/planning/planned_block_sizes.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/planning/plan_inputs.h"

namespace kvblocks {
namespace {

bool KeepsFewStates(const KvCacheSpec& spec) {
  const auto* mamba = spec.get_if<MambaSpec>();
  return mamba != nullptr && mamba->options().cache_mode != MambaCacheMode::kAlign;
}

std::string Listed(std::span<const int64_t> numbers) {
  std::string text;
  for (const int64_t n : numbers) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text;
}

}  // namespace

int64_t EffectiveBlockSize(const KvCacheSpec& spec, int64_t decode_context_parallel) {
  if (spec.kind() == KvCacheSpecKind::kMamba) return spec.block_size();
  return (CheckedInt64(spec.block_size()) * decode_context_parallel)
      .value()
      .value_or(kMaxPlannedTokens + 1);
}

std::optional<PlannedBlockSizes> PlanBlockSizes(std::span<const KvCacheSpec> groups,
                                                int64_t decode_context_parallel, bool hashes_needed,
                                                std::optional<int64_t> match_unit,
                                                std::vector<PlanError>* errors) {
  PlannedBlockSizes sizes;
  if (groups.empty()) return sizes;
  std::vector<int64_t> blocks;
  CheckedInt64 lcm = 1;
  int64_t gcd = 0;
  // What no prefix is kept in does not limit where one may end.
  const bool any_cacheable = std::ranges::any_of(groups, &KvCacheSpec::is_prefix_cacheable);
  for (const KvCacheSpec& spec : groups) {
    if (any_cacheable && !spec.is_prefix_cacheable()) continue;
    const int64_t block = EffectiveBlockSize(spec, decode_context_parallel);
    blocks.push_back(block);
    gcd = std::gcd(gcd, block);
    if (!lcm.overflowed()) lcm = lcm * (block / std::gcd(*lcm.value(), block));
  }
  sizes.scheduler = lcm.value().value_or(kMaxPlannedTokens + 1);
  if (sizes.scheduler > kMaxPlannedTokens) {
    errors->push_back(ValueError(
        "block sizes of the groups", Listed(blocks),
        "a least common multiple of at most " + std::to_string(kMaxPlannedTokens) + " tokens"));
    return std::nullopt;
  }
  sizes.hash = sizes.scheduler;
  if (groups.size() == 1 || !hashes_needed || std::ranges::any_of(groups, KeepsFewStates)) {
    return sizes;
  }
  sizes.hash = match_unit.value_or(gcd);
  if (gcd % sizes.hash != 0) {
    errors->push_back({.code = PlanErrorCode::kMatchUnit,
                       .message = "match unit of " + std::to_string(sizes.hash) +
                                  " tokens: expected a divisor of every group's block size, " +
                                  Listed(blocks),
                       .needed = sizes.hash,
                       .available = gcd});
    return std::nullopt;
  }
  return sizes;
}

}  // namespace kvblocks
