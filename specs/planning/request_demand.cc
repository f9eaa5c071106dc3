#include "kvblocks/specs/planning/request_demand.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/specs/planning/plan_inputs.h"

namespace kvblocks {
namespace {

GroupDemand WindowDemand(int64_t window, int64_t block_size, int64_t in_flight,
                         BlockCountFormula formula) {
  GroupDemand demand;
  const int64_t span = AddUpTo(window - 1, in_flight, kNoCap);
  demand.alone.step = demand.steady.step = block_size;
  if (formula == BlockCountFormula::kUpstream) {
    demand.alone.cap = CeilDiv(span, block_size);
    demand.alone.added = 1;
    demand.steady = demand.alone;
    return demand;
  }
  demand.alone.cap = AddUpTo(CeilDiv(span - 1, block_size), 1, kNoCap);
  demand.steady.cap = AddUpTo(CeilDiv(window - 1, block_size), 1, kNoCap);
  demand.transient_blocks = CeilDiv(in_flight, block_size);
  return demand;
}

GroupDemand ChunkDemand(int64_t chunk, int64_t block_size, int64_t in_flight,
                        BlockCountFormula formula) {
  GroupDemand demand;
  demand.alone.step = demand.steady.step = block_size;
  if (formula == BlockCountFormula::kUpstream) {
    demand.alone.cap = CeilDiv(AddUpTo(chunk, in_flight, kNoCap), block_size);
    demand.steady = demand.alone;
    return demand;
  }
  demand.alone.cap = CeilDiv(AddUpTo(chunk - 1, in_flight, kNoCap), block_size);
  demand.steady.cap = CeilDiv(chunk, block_size);
  demand.transient_blocks = CeilDiv(in_flight, block_size);
  return demand;
}

BlockStaircase Constant(int64_t blocks) { return {.step = 1, .cap = 0, .added = blocks}; }

GroupDemand StateDemand(const KvCacheSpecOptions& o) {
  GroupDemand demand;
  switch (o.cache_mode) {
    case MambaCacheMode::kNone:
      demand.alone = Constant(AddUpTo(o.num_speculative_blocks, 1, kNoCap));
      break;
    case MambaCacheMode::kAlign:
      demand.alone = Constant(
          AddUpTo(AddUpTo(o.num_speculative_blocks, o.num_checkpoint_blocks, kNoCap), 2, kNoCap));
      break;
    case MambaCacheMode::kAll:
      demand.alone = {.step = o.block_size, .added = o.num_speculative_blocks};
      break;
  }
  demand.steady = demand.alone;
  return demand;
}

}  // namespace

GroupDemand DemandOf(const KvCacheSpec& spec, const RequestLimits& limits,
                     BlockCountFormula formula, std::optional<int64_t> billed_window) {
  const int64_t in_flight = limits.max_in_flight_tokens;
  if (const auto window = billed_window.has_value() ? billed_window : spec.sliding_window()) {
    return WindowDemand(AddUpTo(*window, spec.extra_retained_tokens(), kNoCap), spec.block_size(),
                        in_flight, formula);
  }
  if (const auto chunk = spec.attention_chunk_size()) {
    return ChunkDemand(*chunk, spec.block_size(), in_flight, formula);
  }
  if (const auto* mamba = spec.get_if<MambaSpec>()) return StateDemand(mamba->options());
  if (spec.kind() == KvCacheSpecKind::kRing) return {.alone = Constant(1), .steady = Constant(1)};
  GroupDemand demand;
  // Nested ceilings equal the ceiling of the division by the product.
  demand.alone.step =
      Saturated(CheckedInt64(spec.block_size()) * limits.decode_context_parallel);
  if (spec.kind() == KvCacheSpecKind::kCrossAttention) {
    demand.alone = Constant(CeilDiv(limits.max_encoder_tokens, demand.alone.step));
  }
  demand.steady = demand.alone;
  if (formula == BlockCountFormula::kExact) {
    demand.permanent_blocks = spec.sink_length() / spec.block_size();
  }
  return demand;
}

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
