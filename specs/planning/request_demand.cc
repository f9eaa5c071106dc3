#include "kvblocks/specs/planning/request_demand.h"

#include "kvblocks/checks/checked_int64.h"

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
      (CheckedInt64(spec.block_size()) * limits.decode_context_parallel).value().value_or(kNoCap);
  if (spec.kind() == KvCacheSpecKind::kCrossAttention) {
    demand.alone = Constant(CeilDiv(limits.max_encoder_tokens, demand.alone.step));
  }
  demand.steady = demand.alone;
  if (formula == BlockCountFormula::kExact) {
    demand.permanent_blocks = spec.sink_length() / spec.block_size();
  }
  return demand;
}

}  // namespace kvblocks
