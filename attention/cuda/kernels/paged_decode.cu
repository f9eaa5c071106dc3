#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/decode_items.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/cuda/kernels/paged_decode_kernel.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

bool IsAligned(const void* address, size_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Rows of keys that 16-byte copies can read.
bool RowsAreAligned(const CacheTensor& tensor, int element_bytes) {
  return IsAligned(tensor.data, 16) && tensor.block_stride * element_bytes % 16 == 0 &&
         tensor.token_stride * element_bytes % 16 == 0 &&
         tensor.head_stride * element_bytes % 16 == 0;
}

bool Is16Bit(Element element) { return element == Element::kF16 || element == Element::kBF16; }

int MaxOf(int a, int b) { return a > b ? a : b; }

// Strides of blocks and tokens (of kPagedX: of eight tokens) as multiples of a power of two, so
// that the offset of any key's octet fits 32 bits and is not the largest, which means none.
struct Units {
  uint32_t unit = 0, block = 0, token = 0;
};
bool UnitsOf(const Cache& cache, bool values, Units* units) {
  const CacheTensor& tensor = values ? cache.v : cache.k;
  const int64_t bytes = BytesOf(cache.element);
  const bool is_paged_x = cache.layout == Layout::kPagedX;
  const int64_t block = tensor.block_stride * bytes;
  const int64_t token = is_paged_x ? 8 * (values ? bytes : 16) : tensor.token_stride * bytes;
  if (block < 0 || token < 0 || token > int64_t{1} << 26) return false;
  int64_t unit = 8;
  while (unit < 1 << 20 && (block | token) % (2 * unit) == 0) unit *= 2;
  const int64_t most = (int64_t{1} << 32) - 2;
  const int64_t tokens = int64_t{cache.block_size - 1} / (is_paged_x ? 8 : 1) * (token / unit);
  if (tokens > most || (block > 0 && cache.num_blocks > (most - tokens) / (block / unit))) {
    return false;
  }
  *units = {static_cast<uint32_t>(unit), static_cast<uint32_t>(block / unit),
            static_cast<uint32_t>(token / unit)};
  return true;
}

constexpr int kMostRows = 16;  // of a block: queries

// How the queries of a KV head are assigned to blocks.
struct Shape {
  int padded_dim = 0;  // 64, 128, 256
  int groups = 1;      // of 8 queries, per block
  int row_groups = 1;  // blocks
  int rows = 1;        // queries of a block that may exist
};
Shape ShapeOf(const PagedDecodeParams& params, bool is_special) {
  Shape shape;
  const int dim = MaxOf(params.key_dim, params.value_dim);
  shape.padded_dim = dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
  const int queries = params.num_heads / params.num_kv_heads * MaxOf(1, params.max_query_len);
  // Of the largest heads 16 queries do not fit the registers.
  shape.groups = queries <= 8 || shape.padded_dim == 256 || is_special ? 1 : 2;
  const int rows = 8 * shape.groups;
  shape.row_groups = (queries + rows - 1) / rows;
  shape.rows = queries < rows ? queries : rows;
  return shape;
}
Shape ShapeOf(const PagedDecodeParams& params) { return ShapeOf(params, params.is_special()); }

constexpr size_t kAlignment = 256;
size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t SlotsOf(const DecodePlanParams& plan) {
  return plan.kind == SplitKind::kAuto ? 2 * int64_t{plan.num_parts} : LayoutOf(plan).max_pieces;
}

// Few and short requests are cut for clusters of blocks, which merge states in shared memory. Of
// more of them, or longer ones, more blocks should read keys; and clusters of two blocks per
// multiprocessor do not all run at the same time.
bool InClusters(const PagedDecodeParams& params, const Shape& shape, const LaunchContext& context,
                const DecodePlanParams& plan) {
  // Built for 9.0 alone.
  if (context.compute_capability != 90 || plan.kind != SplitKind::kAuto) return false;
  const int64_t clusters = int64_t{params.num_requests} * params.num_kv_heads * shape.row_groups;
  const int64_t keys = plan.max_seq_len < plan.max_keys ? plan.max_seq_len : plan.max_keys;
  constexpr int64_t kMostTiles = 4;  // of a block
  return keys > kDecodeTile && keys <= kMostTiles * kDecodeCluster * kDecodeTile &&
         clusters * kDecodeCluster <= context.num_multiprocessors;
}

// Where blocks that plan for themselves count arrivals; -1 if they do not.
int ArrivalRowFor(const LaunchContext& context, const PagedDecodeParams& params,
                  const DecodePlanParams& plan) {
  const int arrivals = plan.num_parts * params.num_kv_heads * ShapeOf(params).row_groups;
  const bool does = plan.kind == SplitKind::kAuto && params.num_requests <= kMaxOwnRequests &&
                    arrivals <= kArrivalCounters;
  return does ? ArrivalRowOf(context.workspace) : -1;
}

}  // namespace

bool PlansInDecode(const LaunchContext& context, const PagedDecodeParams& params) {
  return ArrivalRowFor(context, params, DecodePlanOf(params, context.num_multiprocessors)) >= 0;
}

bool TakesPagedDecode(const PagedDecodeParams& params) {
  const Cache& cache = params.keys.cache;
  if ((!IsStrided(cache.layout) && cache.layout != Layout::kPagedX) ||
      cache.element == Element::kF32 || cache.has_row_scales()) {
    return false;
  }
  if (params.kv_start_loc != nullptr || params.query_positions != nullptr ||
      params.out_scale > 0) {
    return false;
  }
  // More queries per request are for prefill. Of special cases each eight queries read the keys
  // again.
  const int group = params.num_heads / MaxOf(1, params.num_kv_heads);
  const int most = params.is_special() ? 16 : 64;
  if (params.query_start_loc != nullptr && int64_t{params.max_query_len} * group > most) {
    return false;
  }
  // Queries in codes are converted as those of keys are, once. Not built for special cases.
  const bool q_codes = params.q.element == Element::kF8E4M3 && cache.element == Element::kF8E4M3;
  if (q_codes && params.is_special()) return false;
  if ((!Is16Bit(params.q.element) && !q_codes) || !Is16Bit(params.out.element)) return false;
  if (Is16Bit(cache.element) && cache.element != params.q.element) return false;
  const int bytes = BytesOf(cache.element);
  const int unit = 16 / bytes;
  if (params.key_dim < unit || params.value_dim < unit || params.key_dim % unit != 0 ||
      params.value_dim % unit != 0 || params.key_dim > 256 || params.value_dim > 256) {
    return false;
  }
  if (params.num_kv_heads < 1 || params.num_kv_heads > 0xffff || cache.block_size % 8 != 0 ||
      !RowsAreAligned(cache.k, bytes) || !RowsAreAligned(cache.v, bytes)) {
    return false;
  }
  Units units;
  if (!UnitsOf(cache, false, &units) || !UnitsOf(cache, true, &units)) return false;
  // Four bytes of elements are read and written at once.
  const int q_unit = q_codes ? 4 : 2;
  if (!IsAligned(params.q.data, 4) || params.q.row_stride % q_unit != 0 ||
      params.q.head_stride % q_unit != 0 || !IsAligned(params.out.data, 4) ||
      params.out.row_stride % 2 != 0 || params.out.head_stride % 2 != 0) {
    return false;
  }
  const int chunk = params.scoring.chunk;
  if (chunk > 0) {
    if (chunk % 8 != 0) return false;
    if (params.query_start_loc != nullptr && chunk < kMostRows) return false;
  }
  const Shape shape = ShapeOf(params);
  const int64_t rows = int64_t{8} * shape.groups * shape.row_groups;
  if (rows * (params.num_heads / params.num_kv_heads) >= 1 << 16) return false;  // TokenOf
  return TakesDecodePlan(DecodePlanOf(params, 1));
}

DecodePlanParams DecodePlanOf(const PagedDecodeParams& params, int num_multiprocessors) {
  // Layers of either shape may share a plan.
  const Shape shape = ShapeOf(params, false);
  DecodePlanParams plan;
  plan.seq_lens = params.keys.seq_lens;
  plan.query_start_loc = params.query_start_loc;
  plan.num_requests = params.num_requests;
  plan.max_seq_len = params.max_seq_len;
  plan.block_size = params.keys.cache.block_size;
  plan.max_keys = int64_t{params.keys.table_columns} * plan.block_size;
  constexpr int64_t kMaxKeys = (int64_t{1} << 31) - 1024;
  if (plan.max_keys > kMaxKeys) plan.max_keys = kMaxKeys;
  const bool is_given = params.split == SplitKind::kGiven;
  plan.window = is_given                          ? params.given_window
                : params.scoring.window_left >= 0 ? params.scoring.window_left + 1
                                                  : 0;
  plan.chunk = is_given ? 0 : params.scoring.chunk;
  plan.kind = params.split;
  plan.value = params.split_value;
  plan.tile = is_given ? params.given_tile : kDecodeTile;
  const int per_multiprocessor = DecodeBlocksPerMultiprocessor(
      shape.padded_dim, BytesOf(params.keys.cache.element), shape.groups);
  const int heads = params.num_kv_heads * shape.row_groups;
  plan.num_parts = MaxOf(1, num_multiprocessors * per_multiprocessor / heads);
  plan.num_counters =
      params.num_requests * params.num_kv_heads * ShapeOf(params, true).row_groups;
  return plan;
}

PagedDecodeWorkspace WorkspaceOf(const PagedDecodeParams& params, int num_multiprocessors) {
  const Shape shape = ShapeOf(params);
  const DecodePlanParams plan = DecodePlanOf(params, num_multiprocessors);
  PagedDecodeWorkspace workspace;
  workspace.plan_bytes = Aligned(LayoutOf(plan).bytes);
  const size_t states = static_cast<size_t>(SlotsOf(plan)) *
                        static_cast<size_t>(params.num_kv_heads) *
                        static_cast<size_t>(shape.row_groups) * static_cast<size_t>(shape.rows);
  workspace.partial_bytes =
      Aligned(states * static_cast<size_t>(params.value_dim) * sizeof(float)) +
      Aligned(states * 2 * sizeof(float));
  workspace.bytes = (params.plan == nullptr ? workspace.plan_bytes : 0) + workspace.partial_bytes;
  return workspace;
}

Error LaunchPagedDecode(const LaunchContext& context, const PagedDecodeParams& params) {
  if (params.num_requests == 0 || params.num_heads == 0) return 0;
  const Shape shape = ShapeOf(params);
  const DecodePlanParams plan = DecodePlanOf(params, context.num_multiprocessors);
  const DecodePlanLayout layout = LayoutOf(plan);
  const PagedDecodeWorkspace workspace = WorkspaceOf(params, context.num_multiprocessors);
  if (context.workspace_bytes < workspace.bytes) return kInvalidValue;
  DecodeLaunch launch = {};
  DecodeKernelParams& p = launch.params;
  unsigned char* free = context.workspace;
  int32_t* words = static_cast<int32_t*>(params.plan);
  if (words == nullptr) {
    free += workspace.plan_bytes;
    p.arrival_row = ArrivalRowFor(context, params, plan);
    if (p.arrival_row < 0) {
      words = reinterpret_cast<int32_t*>(context.workspace);
      const Error error = LaunchDecodePlan(context, plan, words);
      if (error != 0) return error;
    }
  }
  p.in_clusters = words == nullptr && InClusters(params, shape, context, plan);
  p.num_requests = params.num_requests;
  p.q = static_cast<const uint16_t*>(params.q.data);
  p.q_row_stride = params.q.row_stride;
  p.q_head_stride = params.q.head_stride;
  p.q_is_bf16 = params.q.element == Element::kBF16;
  p.out = static_cast<uint16_t*>(params.out.data);
  p.out_row_stride = params.out.row_stride;
  p.out_head_stride = params.out.head_stride;
  p.out_is_bf16 = params.out.element == Element::kBF16;
  p.lse = params.lse;
  p.lse_row_stride = params.lse_row_stride;
  p.lse_head_stride = params.lse_head_stride;
  const Cache& cache = params.keys.cache;
  const int64_t bytes = BytesOf(cache.element);
  p.k = static_cast<const char*>(cache.k.data);
  Units units;
  if (!UnitsOf(cache, false, &units)) return kInvalidValue;
  p.k_unit = units.unit;
  p.k_block_units = units.block;
  p.k_token_units = units.token;
  p.k_token = cache.k.token_stride * bytes;
  p.k_head = cache.k.head_stride * bytes;
  p.v = static_cast<const char*>(cache.v.data);
  if (!UnitsOf(cache, true, &units)) return kInvalidValue;
  p.v_unit = units.unit;
  p.v_block_units = units.block;
  p.v_token_units = units.token;
  p.v_token = cache.v.token_stride * bytes;
  p.v_head = cache.v.head_stride * bytes;
  p.block_table = params.keys.block_table;
  p.table_stride = params.keys.table_stride;
  p.seq_lens = params.keys.seq_lens;
  p.query_start_loc = params.query_start_loc;
  p.k_scale = cache.k_scale;
  p.v_scale = cache.v_scale;
  p.q_scale = params.q_scale;
  p.alibi_slopes = params.scoring.alibi_slopes;
  p.sinks = params.scoring.sinks;
  if (words != nullptr) {
    p.header = words;
    p.plan_bytes = (layout.pieces + 4 * layout.max_pieces) * int64_t{4};
    if (plan.kind == SplitKind::kAuto) p.part_begin = words + layout.part_begin;
    p.pieces = reinterpret_cast<const int4*>(words + layout.pieces);
    p.counters = words + layout.counters;
  }
  p.partials = reinterpret_cast<float*>(free);
  const size_t states = static_cast<size_t>(SlotsOf(plan)) *
                        static_cast<size_t>(params.num_kv_heads) *
                        static_cast<size_t>(shape.row_groups) * static_cast<size_t>(shape.rows);
  p.partial_stats = reinterpret_cast<float2*>(
      free + Aligned(states * static_cast<size_t>(params.value_dim) * sizeof(float)));
  p.error_flags = context.error_flags;
  p.scale = params.scoring.scale;
  p.soft_cap = params.scoring.soft_cap;
  p.max_keys =
      static_cast<int32_t>(plan.max_seq_len < plan.max_keys ? plan.max_seq_len : plan.max_keys);
  p.num_blocks = cache.num_blocks;
  p.block_size = cache.block_size;
  p.limits = {plan.window, plan.chunk};
  p.chunk = params.scoring.chunk;
  p.window_left = params.scoring.window_left;
  p.window_right = params.scoring.window_right;
  p.group = params.num_heads / params.num_kv_heads;
  p.group_inverse = GroupInverse(p.group);
  p.block_shift = -1;
  for (int shift = 3; shift < 31; ++shift) {
    if (cache.block_size == 1 << shift) p.block_shift = shift;
  }
  p.num_kv_heads = params.num_kv_heads;
  p.key_dim = params.key_dim;
  p.value_dim = params.value_dim;
  p.rows = shape.rows;
  p.causal = params.scoring.causal;
  p.is_special = p.soft_cap > 0 || p.alibi_slopes != nullptr;
  launch.cache_element = cache.element;
  launch.q_element = params.q.element;
  launch.groups = shape.groups;
  launch.is_special = params.is_special();
  if (launch.is_special) {
    p.is_paged_x = cache.layout == Layout::kPagedX;
    p.scoring = params.scoring;
  }

  // Pieces of other policies are assigned to as many blocks as run at a time, several each.
  const int64_t blocks =
      plan.kind == SplitKind::kAuto
          ? plan.num_parts
          : (layout.max_pieces < 4 * int64_t{plan.num_parts} ? layout.max_pieces
                                                             : 4 * int64_t{plan.num_parts});
  launch.config.grid =
      dim3(static_cast<unsigned>(p.in_clusters ? params.num_requests * kDecodeCluster : blocks),
           static_cast<unsigned>(params.num_kv_heads), static_cast<unsigned>(shape.row_groups));
  launch.config.cluster = p.in_clusters ? kDecodeCluster : 1;
  launch.config.stream = context.stream;
  launch.config.overlap_previous = context.can_overlap();
  if (shape.padded_dim == 64) {
    return launch.is_special ? LaunchSpecialDecode64(launch) : LaunchDecode64(launch);
  }
  if (shape.padded_dim == 128) {
    return launch.is_special ? LaunchSpecialDecode128(launch) : LaunchDecode128(launch);
  }
  return launch.is_special ? LaunchSpecialDecode256(launch) : LaunchDecode256(launch);
}

}  // namespace kvblocks::attention::cuda
