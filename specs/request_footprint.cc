#include "kvblocks/specs/request_footprint.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kvblocks/checks/checked_int64.h"
#include "kvblocks/checks/field_error.h"

namespace kvblocks {
namespace {

// Neither windowed nor chunked.
bool KeepsEveryToken(const KvCacheSpec& spec) {
  return !spec.sliding_window().has_value() && !spec.attention_chunk_size().has_value();
}

absl::Status CheckLimits(const KvCacheSpec& spec, const RequestLimits& limits) {
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
  return status;
}

// Nested ceilings equal the ceiling of the division by the product.
int64_t SplitBlocks(int64_t num_tokens, const KvCacheSpec& spec, const RequestLimits& limits) {
  return CeilDiv(CeilDiv(num_tokens, limits.decode_context_parallel), spec.block_size());
}

// Entries of a block table, or states at once. States are replicated on context-parallel ranks.
CheckedInt64 MambaBlocks(const KvCacheSpecOptions& o, const RequestLimits& limits,
                         bool table_entries) {
  const CheckedInt64 boundaries = CeilDiv(limits.max_model_len, o.block_size);
  switch (o.cache_mode) {
    case MambaCacheMode::kNone:
      return CheckedInt64(1) + o.num_speculative_blocks;
    case MambaCacheMode::kAlign:
      // A checkpoint lies at a boundary, which has its entry in the table already.
      return (table_entries ? boundaries : CheckedInt64(2) + o.num_checkpoint_blocks) +
             o.num_speculative_blocks;
    case MambaCacheMode::kAll:
      return boundaries + o.num_speculative_blocks;
  }
  return 0;
}

// Blocks of one request, or its table entries, where no cap is smaller.
absl::StatusOr<int64_t> UncappedBlocks(const KvCacheSpec& spec, const RequestLimits& limits,
                                       bool table_entries) {
  if (spec.kind() == KvCacheSpecKind::kEncoderOnlyAttention) return 0;
  if (spec.kind() == KvCacheSpecKind::kRing) return 1;
  if (spec.kind() == KvCacheSpecKind::kCrossAttention) {
    return SplitBlocks(limits.max_encoder_tokens, spec, limits);
  }
  const auto* mamba = spec.get_if<MambaSpec>();
  if (mamba == nullptr) return SplitBlocks(limits.max_model_len, spec, limits);
  const auto blocks = MambaBlocks(mamba->options(), limits, table_entries).value();
  if (!blocks.has_value()) {
    return FieldError("num_speculative_blocks",
                      std::to_string(mamba->options().num_speculative_blocks),
                      "a count of blocks that fits 63 bits", spec.ToString());
  }
  return *blocks;
}

// A request holds a contiguous span of tokens: the window's W - 1 before the first unsettled one,
// and at most T more. A span of n tokens that may start anywhere touches cdiv(n - 1, B) + 1 blocks
// at worst, but never more than the sequence has.
int64_t SlidingCap(int64_t window, const KvCacheSpec& spec, const RequestLimits& limits,
                   BlockCountFormula formula) {
  const int64_t block_size = spec.block_size();
  const int64_t kept =
      AddUpTo(limits.max_in_flight_tokens, spec.extra_retained_tokens(), limits.max_model_len);
  const int64_t span = AddUpTo(window - 1, kept, limits.max_model_len);
  if (formula == BlockCountFormula::kUpstream) return CeilDiv(span, block_size) + 1;
  return std::min(CeilDiv(span - 1, block_size) + 1, CeilDiv(limits.max_model_len, block_size));
}

// The span starts at the chunk of the first unsettled token, which is a block boundary because the
// block size divides the chunk. At worst that token is the last of its chunk: C - 1 tokens before
// it and T from it on.
int64_t ChunkedCap(int64_t chunk, int64_t block_size, const RequestLimits& limits,
                   BlockCountFormula formula) {
  const int64_t history = formula == BlockCountFormula::kUpstream ? chunk : chunk - 1;
  return CeilDiv(AddUpTo(history, limits.max_in_flight_tokens, limits.max_model_len), block_size);
}

}  // namespace

absl::StatusOr<std::optional<int64_t>> AdmissionCap(const KvCacheSpec& spec,
                                                    const RequestLimits& limits,
                                                    BlockCountFormula formula) {
  if (absl::Status status = CheckLimits(spec, limits); !status.ok()) return status;
  std::optional<int64_t> cap;
  if (const auto window = spec.sliding_window()) {
    // Only here can a result leave the range: the block that upstream adds to a request of 2^63 - 1
    // one-token blocks.
    if (formula == BlockCountFormula::kUpstream &&
        limits.max_model_len == std::numeric_limits<int64_t>::max()) {
      return FieldError("max_model_len", std::to_string(limits.max_model_len),
                        "a length below 9223372036854775807", "for upstream's formula");
    }
    cap = SlidingCap(*window, spec, limits, formula);
  } else if (const auto chunk = spec.attention_chunk_size()) {
    cap = ChunkedCap(*chunk, spec.block_size(), limits, formula);
  }
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
  const auto cap = AdmissionCap(spec, limits, formula);
  if (!cap.ok()) return cap.status();
  if (cap->has_value()) return **cap;
  return UncappedBlocks(spec, limits, /*table_entries=*/false);
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
  return UncappedBlocks(spec, limits, /*table_entries=*/true);
}

}  // namespace kvblocks
