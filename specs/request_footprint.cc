#include "kvblocks/request_footprint.h"

#include <algorithm>
#include <limits>
#include <string>

#include "checks/checked_int64.h"
#include "checks/field_error.h"

namespace kvblocks {
namespace {

// Neither windowed nor chunked.
bool KeepsEveryToken(const KvCacheSpec& spec) {
  return !spec.sliding_window().has_value() && !spec.attention_chunk_size().has_value();
}

absl::Status CheckLimits(const KvCacheSpec& spec, const RequestLimits& limits,
                         BlockCountFormula formula = BlockCountFormula::kExact) {
  absl::Status status = CheckPositive("max_model_len", limits.max_model_len);
  status.Update(CheckPositive("max_in_flight_tokens", limits.max_in_flight_tokens));
  status.Update(CheckPositive("decode_context_parallel", limits.decode_context_parallel));
  if (status.ok() && spec.kind() == KvCacheSpecKind::kCrossAttention &&
      limits.max_encoder_tokens < 1) {
    return FieldError("max_encoder_tokens", std::to_string(limits.max_encoder_tokens),
                      "at least 1 for " + spec.ToString());
  }
  if (status.ok() && limits.decode_context_parallel > 1 && !KeepsEveryToken(spec)) {
    return FieldError("decode_context_parallel", std::to_string(limits.decode_context_parallel),
                      "1 for " + spec.ToString(),
                      "window and chunk layers cannot be split over context-parallel ranks");
  }
  // Only here can a result leave the range: the block that upstream adds to a request of 2^63 - 1
  // one-token blocks.
  if (status.ok() && spec.sliding_window().has_value() && formula == BlockCountFormula::kUpstream &&
      limits.max_model_len == kNoCap) {
    return FieldError("max_model_len", std::to_string(limits.max_model_len),
                      "a length below 9223372036854775807", "for upstream's formula");
  }
  return status;
}

absl::Status TooManyStates(const KvCacheSpec& spec) {
  return FieldError("num_speculative_blocks", std::to_string(spec.options().num_speculative_blocks),
                    "a count of blocks that fits 63 bits", spec.ToString());
}

// A request holds a contiguous span of tokens: the window's W - 1 before the first unsettled one,
// and at most T more. A span of n tokens that may start anywhere touches cdiv(n - 1, B) + 1 blocks
// at worst, but never more than the sequence has.
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

// The span starts at the chunk of the first unsettled token, which is a block boundary because the
// block size divides the chunk. At worst that token is the last of its chunk: C - 1 tokens before
// it and T from it on.
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

int64_t BlockStaircase::At(int64_t length) const {
  return Saturated(CheckedInt64(added) + std::min(cap, CeilDiv(length, step)));
}

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
  demand.alone.step = Saturated(CheckedInt64(spec.block_size()) * limits.decode_context_parallel);
  if (spec.kind() == KvCacheSpecKind::kCrossAttention) {
    demand.alone = Constant(CeilDiv(limits.max_encoder_tokens, demand.alone.step));
  }
  demand.steady = demand.alone;
  if (formula == BlockCountFormula::kExact) {
    demand.permanent_blocks = spec.sink_length() / spec.block_size();
  }
  return demand;
}

absl::StatusOr<std::optional<int64_t>> AdmissionCap(const KvCacheSpec& spec,
                                                    const RequestLimits& limits,
                                                    BlockCountFormula formula) {
  if (absl::Status status = CheckLimits(spec, limits, formula); !status.ok()) return status;
  std::optional<int64_t> cap;
  if (!KeepsEveryToken(spec)) cap = DemandOf(spec, limits, formula).alone.At(limits.max_model_len);
  return cap;
}

absl::StatusOr<std::optional<int64_t>> OutputCap(const KvCacheSpec& spec,
                                                 const RequestLimits& limits,
                                                 BlockCountFormula formula) {
  if (absl::Status status = CheckLimits(spec, limits); !status.ok()) return status;
  std::optional<int64_t> cap;
  if (!spec.output_window()) return cap;
  // The last w settled tokens, the unsettled ones and those of a window that begins where it may.
  const auto block = (CheckedInt64(spec.block_size()) * limits.decode_context_parallel).value();
  if (!block) {
    return FieldError("block_size", std::to_string(spec.block_size()),
                      "a block whose tokens on all ranks fit 63 bits");
  }
  const int64_t kept =
      AddUpTo(limits.max_in_flight_tokens, limits.num_retained_tokens, limits.max_model_len);
  const int64_t span = AddUpTo(*spec.output_window(), kept, limits.max_model_len);
  const int64_t over = formula == BlockCountFormula::kUpstream ? span : span - 1;
  cap = std::min(CeilDiv(over, *block) + 1, CeilDiv(limits.max_model_len, *block));
  return cap;
}

absl::StatusOr<int64_t> MaxBlocksPerRequest(const KvCacheSpec& spec, const RequestLimits& limits,
                                            BlockCountFormula formula) {
  if (absl::Status status = CheckLimits(spec, limits, formula); !status.ok()) return status;
  if (spec.kind() == KvCacheSpecKind::kEncoderOnlyAttention) return 0;
  const int64_t blocks = DemandOf(spec, limits, formula).alone.At(limits.max_model_len);
  if (spec.kind() == KvCacheSpecKind::kMamba && blocks == kNoCap) return TooManyStates(spec);
  return blocks;
}

absl::StatusOr<int64_t> MaxBytesPerRequest(const KvCacheSpec& spec, const RequestLimits& limits,
                                           BlockCountFormula formula) {
  const absl::StatusOr<int64_t> blocks = MaxBlocksPerRequest(spec, limits, formula);
  if (!blocks.ok()) return blocks.status();
  const auto bytes = (CheckedInt64(*blocks) * spec.page_bytes()).value();
  if (!bytes.has_value()) {
    return FieldError("max_model_len", std::to_string(limits.max_model_len),
                      "a length whose cache fits 63 bits",
                      std::to_string(*blocks) + " blocks of " + spec.ToString());
  }
  return *bytes;
}

absl::StatusOr<int64_t> BlockTableWidth(const KvCacheSpec& spec, const RequestLimits& limits) {
  if (absl::Status status = CheckLimits(spec, limits); !status.ok()) return status;
  const int64_t boundaries = CeilDiv(limits.max_model_len, spec.block_size());
  if (!KeepsEveryToken(spec)) return boundaries;
  if (spec.kind() != KvCacheSpecKind::kMamba ||
      spec.options().cache_mode != MambaCacheMode::kAlign) {
    return MaxBlocksPerRequest(spec, limits);
  }
  // A checkpoint lies at a boundary, which has its entry already.
  const int64_t width = AddUpTo(boundaries, spec.options().num_speculative_blocks, kNoCap);
  if (width == kNoCap) return TooManyStates(spec);
  return width;
}

}  // namespace kvblocks
