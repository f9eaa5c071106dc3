#include "attention/backends/workspace.h"

#include <algorithm>
#include <initializer_list>

#include "checks/ceil_div.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kAlignment = 256;
// Of a split plan: first and last request, first and last tile, split index, cut flags.
constexpr int64_t kPlanEntryBytes = 32;
// Partial sums of a selection or maximum: one per block of so many tokens.
constexpr int64_t kTokensPerPartial = 64;
// Query rows that a thread block attends with at a time.
constexpr int64_t kRowsPerTile = 128;
// Rows of queries that states of decode are kept of, where heads are fewer: both ends of a part
// have a tile of up to 16.
constexpr int64_t kLeastDecodeRows = 2 * 16;

// Sum of pieces that Take hands out; -1 beyond int64.
class Sum {
 public:
  void Add(std::initializer_list<int64_t> factors) {
    int64_t product = 1;
    bool fits = bytes_ >= 0;
    for (int64_t factor : factors)
      fits = fits && !__builtin_mul_overflow(product, factor, &product);
    fits = fits && !__builtin_add_overflow(product, kAlignment - 1, &product);
    product = product / kAlignment * kAlignment;
    fits = fits && !__builtin_add_overflow(bytes_, product, &bytes_);
    if (!fits) bytes_ = -1;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<WorkspaceSize> WorkspaceBytes(OpKind op, const WorkspaceBounds& bounds) {
  for (int64_t bound : {bounds.max_reqs, bounds.max_tokens, bounds.num_heads, bounds.num_kv_heads,
                        bounds.value_head_size, bounds.max_parts, bounds.max_rows}) {
    // Keeps sums of bounds within int64.
    if (bound < 0 || bound > int64_t{1} << 60) {
      return InvalidArgument("WorkspaceBytes(", Name(op), "): a bound is ", bound, "; 0 to 2^60");
    }
  }
  const int64_t splits = bounds.max_reqs + bounds.max_parts;
  const int64_t heads = bounds.num_heads, dim = bounds.value_head_size;
  const int64_t rows = heads == 0 ? 0 : std::max(heads, kLeastDecodeRows);
  Sum device, pinned;
  const auto add_decode = [&] {
    device.Add({splits, rows, dim, 4});  // partial outputs
    device.Add({splits, rows, 2, 4});    // their maxima and sums
    device.Add({bounds.max_parts, kPlanEntryBytes});
    device.Add({bounds.max_reqs + 1, 4});  // split offsets
    device.Add({bounds.max_reqs, 8});      // where requests' bits of a ragged mask begin
  };
  switch (op) {
    case OpKind::kPagedDecode:
    case OpKind::kMlaDecode:
    case OpKind::kSparseMlaDecode:
      add_decode();
      break;
    case OpKind::kPagedPrefill:
    case OpKind::kVarlenSelfAttention:
      // Rows that attend to pieces of their keys, a tile of each part: values, and what they weigh.
      device.Add({bounds.max_parts, kRowsPerTile, dim, 4});
      device.Add({bounds.max_parts, kRowsPerTile, 2, 4});
      device.Add({bounds.max_reqs, 8});  // as above
      break;
    case OpKind::kPagedDecodePartial:
      device.Add({bounds.max_reqs, 8});  // as above
      break;
    case OpKind::kCascade:
      device.Add({2, bounds.max_tokens, heads, dim, 4});
      device.Add({2, bounds.max_tokens, heads, 4});
      // Rows that attend to pieces of the prefix, as above.
      device.Add({bounds.max_parts, kRowsPerTile, dim, 4});
      device.Add({bounds.max_parts, kRowsPerTile, 2, 4});
      add_decode();
      break;
    case OpKind::kComputeKvScales:
    case OpKind::kScaleAndCache:
      device.Add({bounds.max_tokens / kTokensPerPartial + 1, heads + 2 * bounds.num_kv_heads, 4});
      break;
    case OpKind::kSelectHkvd:
      device.Add({bounds.max_tokens, 4});  // differences as sortable keys
      device.Add({4, 256, 4});             // histograms of four radix passes
      device.Add({bounds.max_tokens / kTokensPerPartial + 1, 4});
      break;
    case OpKind::kReshapeAndCache:
    case OpKind::kConcatAndCacheMla:
    case OpKind::kReduceSplits:
    case OpKind::kSparseMlaPrefill:
    case OpKind::kMergeStates:
    case OpKind::kGatherCache:
    case OpKind::kFuseKv:
    case OpKind::kRotateKeys:
    case OpKind::kCacheIndexKeys:
    case OpKind::kCompressTokens:
    case OpKind::kGatherRows:
    case OpKind::kQuantizeQueries:
      break;
    case OpKind::kIndexTopk:
      device.Add({bounds.max_tokens, bounds.max_rows, 4});  // scores
      break;
  }
  if (device.bytes() < 0) {
    return InvalidArgument("WorkspaceBytes(", Name(op),
                           "): more than 2^63 bytes; lower the bounds");
  }
  return WorkspaceSize{device.bytes(), pinned.bytes()};
}

absl::StatusOr<absl::Span<std::byte>> WorkspaceArena::Take(int64_t bytes) {
  int64_t needed;
  if (bytes < 0 || __builtin_add_overflow(used_, bytes, &needed) ||
      needed > INT64_MAX - (kAlignment - 1)) {
    return InvalidArgument("a workspace of ", bytes, " bytes");
  }
  if (bytes == 0) return absl::Span<std::byte>();
  most_needed_ = std::max(most_needed_, needed);
  const auto size = static_cast<int64_t>(memory_.size());
  if (needed > size) {
    return ResourceExhausted("the operation needs a workspace of ", needed,
                             " bytes, the arena has ", size, "; provide WorkspaceBytes");
  }
  const auto piece = memory_.subspan(used_, bytes);
  used_ = RoundUp(needed, kAlignment);
  return piece;
}

}  // namespace kvblocks::attention
