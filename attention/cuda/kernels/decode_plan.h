// The split planner on the device: how the keys of a decode batch are cut into pieces of equal
// work, by the rules and with the results of metadata/split_planner.h.
//
// One launch of one block; its plan serves every layer of the same shape until lengths change.
// Where things are in a plan depends on bounds alone (DecodePlanLayout), so that a captured graph
// follows new lengths. A plan is 32-bit words:
//   header (16 words; DecodePlanWord), part_begin [parts + 1] (Auto), split_offsets [R + 1], pieces
//   [max_pieces] of 4 words (DecodePiece), counters: zero, and zero again after every decode.
// Pieces are in order of requests. Auto: part p does pieces part_begin[p] to part_begin[p + 1].
// Other policies: a grid of n blocks shares them, block i does i, i + n, ... A caller may give
// pieces of its own making (kGiven; no split_offsets).
// Because of the counters a plan serves one stream at a time.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

enum class SplitKind : uint8_t { kAuto, kNone, kFixed, kCount, kGiven };

enum DecodePlanWord : int {
  kPlanNumPieces = 0,
  kPlanNumParts,  // Auto, else 0
  kPlanTile,      // keys
  kPlanOverhead,  // Auto, as chosen
  kPlanPayload,   // Auto
  kPlanHeaderWords = 16,
};

// A piece of a request: tiles [begin_tile, end_tile) from the request's first key on.
struct DecodePiece {
  int32_t request = 0;
  int32_t begin_tile = 0, end_tile = 0;
  uint32_t cut = 0;  // pieces of the request << 16 | index among them

  static constexpr uint32_t kMaxPieces = 0xffff;  // of a request
};

struct DecodePlanParams {
  const int32_t* seq_lens = nullptr;         // [R]
  const int32_t* query_start_loc = nullptr;  // [R + 1]; null: one query each
  int32_t num_requests = 0;
  int64_t max_seq_len = 0;  // at least every length
  int64_t max_keys = 0;     // what the block table covers: longer ones are cut to that
  int32_t block_size = 1;
  // 0: none. Tile 0 begins at the block in which the keys that the first query sees do.
  int32_t window = 0, chunk = 0;
  SplitKind kind = SplitKind::kAuto;
  int64_t value = 0;      // of Fixed and Count; Given: pieces
  int32_t tile = 64;      // Auto, None, Given
  int32_t overhead = -1;  // of a piece, in tiles; < 0: 5, less if parts have few tiles
  int32_t num_parts = 1;  // Auto
  int32_t num_counters = 0;
};

inline constexpr int32_t kMaxPlanRequests = 8192;

struct DecodePlanLayout {
  int64_t part_begin = 0, split_offsets = 0, pieces = 0, counters = 0;  // in words
  int64_t max_pieces = 0;
  size_t bytes = 0;
};
DecodePlanLayout LayoutOf(const DecodePlanParams& params);

// What cannot be planned here: too many requests, or pieces of one.
bool TakesDecodePlan(const DecodePlanParams& params);

// REQUIRES: TakesDecodePlan; `plan` of LayoutOf(params).bytes, aligned to 16 bytes.
Error LaunchDecodePlan(const LaunchContext& context, const DecodePlanParams& params, void* plan);

// Some of the pieces of a plan of kind kGiven: they are parameters of the kernel that stores them,
// with the rest of the plan before the first. REQUIRES: the pieces of a request one after another.
struct GivenPieces {
  static constexpr int kMost = 240;
  DecodePlanParams of;
  void* plan = nullptr;              // as of LaunchDecodePlan
  int32_t first = 0, count = 0;      // of all
  DecodePiece pieces[kMost];
};
// What devices take at most by value.
static_assert(sizeof(GivenPieces) + sizeof(DecodePlanLayout) <= 4096);
Error LaunchGivenPieces(const LaunchContext& context, const GivenPieces& given);

// Attention of few queries per request over a paged cache, at the speed of memory: decode, and
// speculation's several tokens.
//
// Queries that share a KV head are columns of matrix products, so each key is read once per group
// of up to 16 of them. Keys are read in the pieces of a plan (decode_plan.h); pieces of a cut
// request leave float32 states, and the last block to finish merges them in order: results do not
// depend on timing. One launch, and one more if it has to plan for itself.
//
// Takes strided caches whose rows begin at multiples of 16 bytes, and kPagedX; blocks of multiples
// of 8 keys, head sizes of multiples of 8 up to 256, 16-bit queries (over e4m3 caches also e4m3
// ones) and outputs; causal, windows, chunks, sinks, soft caps, ALiBi, masks, block-sparse rules;
// no query_positions, no out_scale. Anything else is for the general kernels. Instances for masks,
// block-sparse rules and kPagedX take 8 queries at a time.

struct PagedDecodeParams : DenseAttention {
  SplitKind split = SplitKind::kAuto;
  int64_t split_value = 0;  // of Fixed and Count; Given: pieces
  // Of Given: keys per tile, and the window (0: none) that tiles count from.
  int32_t given_tile = 0, given_window = 0;
  // Made by LaunchDecodePlan or LaunchGivenPieces of DecodePlanOf; null: in the workspace.
  void* plan = nullptr;
};

bool TakesPagedDecode(const PagedDecodeParams& params);

// The constants of a plan for a device of so many multiprocessors.
DecodePlanParams DecodePlanOf(const PagedDecodeParams& params, int num_multiprocessors);

// Whether the blocks of a decode without a plan each find their own part, so that none is launched.
bool PlansInDecode(const LaunchContext& context, const PagedDecodeParams& params);

// The same for all lengths within the bounds.
struct PagedDecodeWorkspace {
  size_t plan_bytes = 0, partial_bytes = 0;  // partial states follow the plan
  size_t bytes = 0;
};
PagedDecodeWorkspace WorkspaceOf(const PagedDecodeParams& params, int num_multiprocessors);

// REQUIRES: TakesPagedDecode; a workspace of WorkspaceOf(...).bytes, aligned to 16 bytes.
Error LaunchPagedDecode(const LaunchContext& context, const PagedDecodeParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_
