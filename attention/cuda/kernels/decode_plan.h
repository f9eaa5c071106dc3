// The split planner on the device: how the keys of a decode batch are cut into pieces of equal
// work, by the rules and with the results of metadata/split_planner.h.
//
// One launch of one block; its plan serves every layer of the same shape until lengths change.
// Where things are in a plan depends on bounds alone (DecodePlanLayout), so that a captured graph
// follows new lengths. A plan is 32-bit words:
//   header (16 words; DecodePlanWord), part_begin [parts + 1] (Auto), split_offsets [R + 1], pieces
//   [max_pieces] of 4 words (DecodePiece), counters: zero, and zero again after every decode.
// Pieces are in order of requests. Auto: part p does pieces part_begin[p] to part_begin[p + 1].
// Other policies: a grid of n blocks deals them out, block i does i, i + n, ... A caller may give
// pieces of its own making (kGiven; no split_offsets).
// Because of the counters a plan serves one stream at a time.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/attention/cuda/kernels/params.h"
#include "kvblocks/attention/cuda/kernels/runtime.h"

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

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_DECODE_PLAN_H_
