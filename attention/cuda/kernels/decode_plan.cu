#include "attention/cuda/kernels/decode_plan.h"

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/device/ptx.h"
#include "attention/cuda/kernels/decode_partition.h"
#include "attention/cuda/kernels/launch.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct KernelParams {
  const int32_t* seq_lens;
  const int32_t* query_start_loc;
  int32_t num_requests, max_keys, block_size;
  KeyLimits limits;
  SplitKind kind;
  int32_t value, tile, overhead, num_parts, num_counters;
  int32_t *header, *part_begin, *split_offsets, *counters;
  int4* pieces;
};

KVB_DEVICE int TilesOf(const KernelParams& p, int b) {
  return TilesOfRequest(p.seq_lens, p.query_start_loc, b, p.max_keys, p.limits, p.block_size,
                        p.tile);
}

KVB_DEVICE int PiecesOf(const KernelParams& p, int tiles, int* step) {
  *step = tiles;
  if (p.kind == SplitKind::kFixed) *step = 1;
  if (p.kind == SplitKind::kCount) *step = (tiles - 1) / p.value + 1;
  return (tiles - 1) / *step + 1;
}

struct PlanSink {
  const KernelParams& p;
  KVB_DEVICE void BeginPart(int part, int at) const { p.part_begin[part] = at; }
  KVB_DEVICE void BeginRequest(int b, int at) const { p.split_offsets[b] = at; }
  KVB_DEVICE void Add(int, int, int at, int4 piece) const { p.pieces[at] = piece; }
};

__global__ __launch_bounds__(kThreads) void DecodePlanKernel(const KernelParams p) {
  __shared__ int32_t sums[kMaxPlanRequests + 1];
  __shared__ int32_t warp_sums[kWarps];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  WaitForPreviousKernel();
  AllowNextKernel();
  for (int i = thread; i < p.num_counters; i += kThreads) p.counters[i] = 0;
  // Prefix sums of tiles or pieces.
  int total = 0;
  for (int base = 0; base < p.num_requests; base += kThreads) {
    const int b = base + thread;
    int own = 0;
    if (b < p.num_requests) {
      own = TilesOf(p, b);
      int step;
      if (p.kind != SplitKind::kAuto) own = PiecesOf(p, own, &step);
    }
    int sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, static_cast<unsigned>(distance));
      if (lane >= distance) sum += other;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    int before = total;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += warp_sums[w];
      total += warp_sums[w];
    }
    if (b < p.num_requests) sums[b + 1] = before + sum;
    __syncthreads();
  }
  if (thread == 0) sums[0] = 0;
  __syncthreads();
  if (p.kind == SplitKind::kAuto) {
    int overhead = p.overhead;
    if (overhead < 0) overhead = ChooseOverhead(total, p.num_parts);
    for (int b = thread; b <= p.num_requests; b += kThreads) sums[b] += b * overhead;
    __syncthreads();
    if (warp > 0) return;
    const int payload = CeilDiv(sums[p.num_requests], p.num_parts) + overhead;
    const int pieces = AssignToParts(p.num_requests, p.num_parts, PartCursor{}, p.num_parts - 1,
                                     sums, overhead, payload, PlanSink{p});
    if (lane == 0) {
      p.part_begin[p.num_parts] = pieces;
      p.split_offsets[p.num_requests] = pieces;
      p.header[kPlanNumPieces] = pieces;
      p.header[kPlanNumParts] = p.num_parts;
      p.header[kPlanTile] = p.tile;
      p.header[kPlanOverhead] = overhead;
      p.header[kPlanPayload] = payload;
    }
    return;
  }
  for (int b = thread; b < p.num_requests; b += kThreads) {
    const int tiles = TilesOf(p, b);
    int step;
    const int count = PiecesOf(p, tiles, &step);
    p.split_offsets[b] = sums[b];
    for (int i = 0; i < count; ++i) {
      p.pieces[sums[b] + i] = MakePiece(b, i * step, Min(tiles, (i + 1) * step), count, i);
    }
  }
  if (thread == 0) {
    p.split_offsets[p.num_requests] = total;
    p.header[kPlanNumPieces] = total;
    p.header[kPlanNumParts] = 0;
    p.header[kPlanTile] = p.tile;
  }
}

__global__ __launch_bounds__(kThreads) void GivenPiecesKernel(
    const __grid_constant__ GivenPieces given, const __grid_constant__ DecodePlanLayout layout) {
  const int thread = static_cast<int>(threadIdx.x);
  int32_t* words = static_cast<int32_t*>(given.plan);
  auto* pieces = reinterpret_cast<DecodePiece*>(words + layout.pieces);
  WaitForPreviousKernel();
  AllowNextKernel();
  for (int i = thread; i < given.count; i += kThreads) pieces[given.first + i] = given.pieces[i];
  if (given.first > 0) return;
  for (int i = thread; i < given.of.num_counters; i += kThreads) words[layout.counters + i] = 0;
  if (thread == 0) {
    words[kPlanNumPieces] = static_cast<int32_t>(given.of.value);
    words[kPlanNumParts] = 0;
    words[kPlanTile] = given.of.tile;
  }
}

int64_t MaxKeys(const DecodePlanParams& params) {
  return params.max_seq_len < params.max_keys ? params.max_seq_len : params.max_keys;
}

int64_t PiecesPerRequest(const DecodePlanParams& params) {
  const int64_t keys = MaxKeys(params);
  switch (params.kind) {
    case SplitKind::kFixed:
      // A window's first tile begins at a block, so a length may touch one more.
      return keys / params.value + 2;
    case SplitKind::kCount: {
      const int64_t blocks = keys / params.block_size + 2;
      return params.value < blocks ? params.value : blocks;
    }
    default:
      return 1;
  }
}

int64_t AlignedTo4(int64_t words) { return (words + 3) / 4 * 4; }

}  // namespace

bool TakesDecodePlan(const DecodePlanParams& params) {
  return params.num_requests <= kMaxPlanRequests && params.num_parts <= DecodePiece::kMaxPieces &&
         params.max_keys >= 0 && params.max_keys < int64_t{1} << 31 &&
         PiecesPerRequest(params) <= DecodePiece::kMaxPieces;
}

DecodePlanLayout LayoutOf(const DecodePlanParams& params) {
  DecodePlanLayout layout;
  const bool is_auto = params.kind == SplitKind::kAuto;
  layout.max_pieces =
      params.kind == SplitKind::kGiven
          ? params.value
          : params.num_requests * PiecesPerRequest(params) + (is_auto ? params.num_parts : 0);
  layout.part_begin = kPlanHeaderWords;
  layout.split_offsets = layout.part_begin + (is_auto ? params.num_parts + 1 : 0);
  layout.pieces = AlignedTo4(layout.split_offsets + params.num_requests + 1);
  layout.counters = layout.pieces + 4 * layout.max_pieces;
  layout.bytes = static_cast<size_t>(layout.counters + params.num_counters) * sizeof(int32_t);
  return layout;
}

Error LaunchDecodePlan(const LaunchContext& context, const DecodePlanParams& params, void* plan) {
  const DecodePlanLayout layout = LayoutOf(params);
  int32_t* words = static_cast<int32_t*>(plan);
  KernelParams p = {};
  p.seq_lens = params.seq_lens;
  p.query_start_loc = params.query_start_loc;
  p.num_requests = params.num_requests;
  p.max_keys = static_cast<int32_t>(MaxKeys(params));
  p.block_size = params.block_size;
  p.limits = {params.window, params.chunk};
  p.kind = params.kind;
  constexpr int64_t kLarge = 1 << 30;
  p.value = static_cast<int32_t>(params.value < kLarge ? params.value : kLarge);
  p.tile = params.tile;
  if (params.kind == SplitKind::kFixed) p.tile = p.value;
  if (params.kind == SplitKind::kCount) p.tile = params.block_size;
  p.overhead = params.overhead;
  p.num_parts = params.num_parts;
  p.num_counters = params.num_counters;
  p.header = words;
  p.part_begin = words + layout.part_begin;
  p.split_offsets = words + layout.split_offsets;
  p.pieces = reinterpret_cast<int4*>(words + layout.pieces);
  p.counters = words + layout.counters;
  return Launch(ConfigOf(context, 1, kThreads), DecodePlanKernel, p);
}

Error LaunchGivenPieces(const LaunchContext& context, const GivenPieces& given) {
  return Launch(ConfigOf(context, 1, kThreads), GivenPiecesKernel, given, LayoutOf(given.of));
}

}  // namespace kvblocks::attention::cuda
