// The operations that move, quantise, choose or turn rows: caches, CacheBlend, the indexer's keys
// and the compressor.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "attention/cuda/cuda_call.h"
#include "attention/cuda/enqueue_ops.h"
#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/blend.h"
#include "attention/cuda/kernels/cache_write.h"
#include "attention/cuda/kernels/indexer.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/check.h"

namespace kvblocks::attention::cuda {
namespace {

// How rows of a tensor of heads are stored in k or v of a dense layout.
RowStore StoreOf(const ConstTensorView& from, const KvCacheView& cache, bool key,
                 const ConstTensorView& scale) {
  const TensorView& to = key ? cache.k : cache.v;
  RowStore store;
  store.from = ConstRowsOf(from);
  store.to = to.data;
  store.element = ElementOf(to.dtype);
  store.heads = static_cast<int32_t>(cache.num_kv_heads());
  store.dim = static_cast<int32_t>(key ? cache.key_dim() : cache.value_dim());
  store.scale = ScalesOf(scale);
  const int token_dim = cache.layout == KvLayout::kHnd ? 2 : 1;
  const int head_dim = cache.layout == KvLayout::kNhd ? 2 : 1;
  store.block_stride = to.stride[0];
  store.head_stride = to.stride[head_dim];
  if (cache.layout == KvLayout::kPagedX) {
    store.order = key ? RowStore::Order::kPieces : RowStore::Order::kDimMajor;
  } else {
    store.token_stride = to.stride[token_dim];
  }
  return store;
}

// Rows [T, dim] of a latent cache.
RowStore LatentStoreOf(const ConstTensorView& from, const TensorView& to, int64_t first,
                       const ConstTensorView& scale) {
  RowStore store;
  store.from = ConstRowsOf(from);
  store.to = to.data + first * ElementBytes(to.dtype);
  store.element = ElementOf(to.dtype);
  store.dim = static_cast<int32_t>(from.extent[1]);
  store.block_stride = to.stride[0];
  store.token_stride = to.stride[1];
  store.scale = ScalesOf(scale);
  return store;
}

SlotMapping MappingOf(const ConstTensorView& slot_mapping, const KvCacheView& cache) {
  return {.slots = slot_mapping.as<int64_t>(),
          .stride = slot_mapping.stride[0],
          .num_tokens = slot_mapping.extent[0],
          .num_slots = cache.num_slots(),
          .block_size = static_cast<int32_t>(cache.block_size())};
}

// K or V with scales of its own in the cache.
QuantisedStore QuantisedStoreOf(const ConstTensorView& from, const KvCacheView& cache,
                                const KvScales& scales, bool key) {
  const Cache place = CacheOf(cache, {});
  QuantisedStore store;
  store.from = ConstRowsOf(from);
  store.codes = key ? place.k : place.v;
  store.scales = key ? place.k_row_scales : place.v_row_scales;
  store.dim = static_cast<int32_t>(from.extent[2]);
  store.outer_scale = ScalesOf(key ? scales.k : scales.v);
  return store;
}

CacheWriteParams CacheWriteParamsOf(const ReshapeAndCacheArgs& args) {
  CacheWriteParams params;
  params.stores[0] = StoreOf(args.k, args.cache, true, args.scales.k);
  params.stores[1] = StoreOf(args.v, args.cache, false, args.scales.v);
  params.mapping = MappingOf(args.slot_mapping, args.cache);
  return params;
}

// Also how many scales the tensor with most of them has.
KvScalesParams KvScalesParamsOf(const ComputeKvScalesArgs& args, int64_t* most_scales) {
  KvScalesParams params;
  *most_scales = 0;
  const auto add = [&](int i, const ConstTensorView& from, float divisor, const TensorView& to) {
    if (from.absent() || to.absent() || from.empty()) return;
    ScaleTask& task = params.tasks[i];
    task.from = ConstRowsOf(from);
    task.tokens = from.extent[0];
    task.heads = static_cast<int32_t>(from.extent[1]);
    task.dim = static_cast<int32_t>(from.extent[2]);
    task.divisor = divisor;
    task.to = to.as<float>();
    task.num_scales = static_cast<int32_t>(to.num_elements());
    task.to_stride = task.num_scales > 1 ? to.stride[0] : 1;
    *most_scales = std::max<int64_t>(*most_scales, task.num_scales);
  };
  add(0, args.q, args.q_divisor, args.q_scale);
  add(1, args.k, args.k_divisor, args.k_scale);
  add(2, args.v, args.v_divisor, args.v_scale);
  return params;
}

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const ReshapeAndCacheArgs& args) {
  CudaChecker check("ReshapeAndCache", context, args);
  return check.Moved("k", args.k).Moved("v", args.v).Moved("the cache", args.cache.k).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<ReshapeAndCacheArgs>& checked) {
  const ReshapeAndCacheArgs& args = checked.args();
  if (args.slot_mapping.empty() || args.cache.num_slots() == 0) return absl::OkStatus();
  if (args.cache.format != KvRowFormat::kElements) {
    QuantisedWriteParams params;
    params.stores[0] = QuantisedStoreOf(args.k, args.cache, args.scales, true);
    params.stores[1] = QuantisedStoreOf(args.v, args.cache, args.scales, false);
    params.format = args.cache.format;
    params.element = ElementOf(args.cache.k.dtype);
    params.heads = static_cast<int32_t>(args.cache.num_kv_heads());
    params.mapping = MappingOf(args.slot_mapping, args.cache);
    return call.Launch(LaunchQuantisedWrite, params);
  }
  return call.Launch(LaunchCacheWrite, CacheWriteParamsOf(args));
}

absl::Status CheckOnCuda(const ExecContext& context, const ConcatAndCacheMlaArgs& args) {
  CudaChecker check("ConcatAndCacheMla", context, args);
  check.Moved("kv_c", args.kv_c).Moved("k_pe", args.k_pe).Moved("the cache", args.cache.k);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<ConcatAndCacheMlaArgs>& checked) {
  const ConcatAndCacheMlaArgs& args = checked.args();
  const KvCacheView& cache = args.cache;
  if (args.slot_mapping.empty() || cache.num_slots() == 0) return absl::OkStatus();
  if (cache.layout == KvLayout::kMlaFp8_656 || cache.layout == KvLayout::kMlaFp8_584) {
    MlaFp8WriteParams params;
    params.kv_c = ConstRowsOf(args.kv_c);
    params.k_pe = ConstRowsOf(args.k_pe);
    params.to = cache.k.as<uint8_t>();
    params.planar = cache.layout == KvLayout::kMlaFp8_584;
    params.block_stride = cache.k.stride[0];
    params.token_stride = params.planar ? 0 : cache.k.stride[1];
    params.mapping = MappingOf(args.slot_mapping, cache);
    return call.Launch(LaunchMlaFp8Write, params);
  }
  if (IsMlaRecord(cache.format)) {
    MlaRecordWriteParams params;
    params.kv_c = ConstRowsOf(args.kv_c);
    params.k_pe = ConstRowsOf(args.k_pe);
    params.compressed = static_cast<int32_t>(args.kv_c.extent[1]);
    params.format = cache.format;
    params.to = cache.k.as<uint8_t>();
    params.block_stride = cache.k.stride[0];
    params.token_stride = cache.k.stride[1];
    params.mapping = MappingOf(args.slot_mapping, cache);
    return call.Launch(LaunchMlaRecordWrite, params);
  }
  CacheWriteParams params;
  const bool split = cache.layout == KvLayout::kMlaSplit;
  params.stores[0] = LatentStoreOf(args.kv_c, cache.k, 0, args.scale);
  params.stores[1] = LatentStoreOf(args.k_pe, split ? cache.v : cache.k,
                                   split ? 0 : args.kv_c.extent[1], args.scale);
  params.mapping = MappingOf(args.slot_mapping, cache);
  return call.Launch(LaunchCacheWrite, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const ComputeKvScalesArgs& args) {
  CudaChecker check("ComputeKvScales", context, args);
  // What has no scale to go to is not looked at.
  if (!args.q_scale.absent() && !args.q.empty()) check.Moved("q", args.q);
  if (!args.k_scale.absent() && !args.k.empty()) check.Moved("k", args.k);
  if (!args.v_scale.absent() && !args.v.empty()) check.Moved("v", args.v);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<ComputeKvScalesArgs>& checked) {
  int64_t most_scales = 0;
  const KvScalesParams params = KvScalesParamsOf(checked.args(), &most_scales);
  if (most_scales == 0) return absl::OkStatus();
  absl::Status status = call.RequireWorkspace(KvScalesWorkspaceBytes(most_scales));
  return status.ok() ? call.Launch(LaunchKvScales, params) : status;
}

absl::Status CheckOnCuda(const ExecContext& context, const ScaleAndCacheArgs& args) {
  CudaChecker check("ScaleAndCache", context, args);
  check.Moved("q", args.scales.q).Moved("k", args.scales.k).Moved("v", args.scales.v);
  return check.Moved("the cache", args.cache.k).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<ScaleAndCacheArgs>& checked) {
  int64_t most_scales = 0;
  const KvScalesParams scales = KvScalesParamsOf(checked.args().scales, &most_scales);
  if (checked.args().scales.k.empty()) return absl::OkStatus();
  absl::Status status = call.RequireWorkspace(KvScalesWorkspaceBytes(most_scales));
  // Launches that overlap: one that waits for all of its blocks in between took longer.
  if (status.ok()) status = call.Launch(LaunchKvScales, scales);
  if (!status.ok() || checked.args().slot_mapping.empty()) return status;
  return call.Launch(LaunchCacheWrite, CacheWriteParamsOf(checked.args().write()));
}

absl::Status CheckOnCuda(const ExecContext& context, const QuantizeQueriesArgs& args) {
  CudaChecker check("QuantizeQueries", context, args);
  return check.Moved("q", args.q).Values("q", args.q).Values("codes", args.codes).status();
}

// The codes are a cache of one block, of which each token has a slot.
absl::Status Enqueue(CudaCall& call, const Checked<QuantizeQueriesArgs>& checked) {
  const QuantizeQueriesArgs& args = checked.args();
  if (args.q.empty()) return absl::OkStatus();
  CacheWriteParams params;
  RowStore& store = params.stores[0];
  store.from = ConstRowsOf(args.q);
  store.to = args.codes.data;
  store.element = ElementOf(args.codes.dtype);
  store.token_stride = args.codes.stride[0];
  store.head_stride = args.codes.stride[1];
  store.heads = static_cast<int32_t>(args.q.extent[1]);
  store.dim = static_cast<int32_t>(args.q.extent[2]);
  store.scale = ScalesOf(args.scale);
  params.mapping.num_tokens = params.mapping.num_slots = args.q.extent[0];
  params.mapping.block_size = static_cast<int32_t>(args.q.extent[0]);
  return call.Launch(LaunchCacheWrite, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const GatherCacheArgs& args) {
  CudaChecker check("GatherCache", context, args);
  check.Moved("the cache", args.cache.k).Moved("out", args.out).Moved("out_v", args.out_v);
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<GatherCacheArgs>& checked) {
  const GatherCacheArgs& args = checked.args();
  if (args.lengths.empty() || args.cache.num_slots() == 0) return absl::OkStatus();
  GatherParams params;
  params.keys = PagedKeysOf(args.cache, args.scales, args.block_table, args.seq_lens);
  params.kv_heads = static_cast<int32_t>(args.cache.num_kv_heads());
  params.key_dim = static_cast<int32_t>(args.cache.key_dim());
  params.value_dim = static_cast<int32_t>(args.cache.value_dim());
  params.num_requests = args.lengths.extent[0];
  params.lengths = args.lengths.as<int32_t>();
  params.seq_lens_stride = args.seq_lens.stride[0];
  params.lengths_stride = args.lengths.stride[0];
  params.row_offset = args.row_offset;
  params.rows = args.out.extent[1];
  const auto output = [](const TensorView& view) {
    GatherOutput out;
    out.data = view.data;
    out.element = ElementOf(view.dtype);
    out.request_stride = view.stride[0];
    out.row_stride = view.stride[1];
    if (view.rank == 4) out.head_stride = view.stride[2];
    return out;
  };
  params.out = output(args.out);
  if (!IsMla(args.cache.layout)) params.out_v = output(args.out_v);
  return call.Launch(LaunchGather, params);
}

// The operations of CacheBlend.

absl::Status CheckOnCuda(const ExecContext& context, const SelectHkvdArgs& args) {
  CudaChecker check("SelectHkvd", context, args);
  return check.Moved("v_new", args.v_new).Moved("v_old", args.v_old).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<SelectHkvdArgs>& checked) {
  const SelectHkvdArgs& args = checked.args();
  const int64_t n = args.v_new.extent[0];
  if (n == 0) return absl::OkStatus();
  SelectParams params;
  params.v_new = ConstRowsOf(args.v_new);
  params.v_old = ConstRowsOf(args.v_old);
  params.num_tokens = n - args.suffix_len;
  params.heads = static_cast<int32_t>(args.v_new.extent[1]);
  params.dim = static_cast<int32_t>(args.v_new.extent[2]);
  params.num_selected = HkvdCount(n, args.suffix_len, args.ratio);
  params.suffix_len = args.suffix_len;
  params.imp = args.imp.as<int32_t>();
  params.imp_stride = args.imp.stride[0];
  if (!args.diffs.absent()) {
    params.diffs = args.diffs.as<float>();
    params.diffs_stride = args.diffs.stride[0];
  }
  absl::Status status = call.RequireWorkspace(SelectWorkspaceBytes(params.num_tokens));
  return status.ok() ? call.Launch(LaunchSelect, params) : status;
}

absl::Status CheckOnCuda(const ExecContext& context, const FuseKvArgs& args) {
  CudaChecker check("FuseKv", context, args);
  return check.Moved("k_old", args.k_old).Moved("v_old", args.v_old).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<FuseKvArgs>& checked) {
  const FuseKvArgs& args = checked.args();
  if (args.imp.empty() || args.k_old.extent[1] == 0) return absl::OkStatus();
  FuseParams params;
  params.imp = args.imp.as<int32_t>();
  params.imp_stride = args.imp.stride[0];
  params.num_rows = args.imp.extent[0];
  params.num_tokens = args.k_old.extent[0];
  params.from[0] = ConstRowsOf(args.k_new);
  params.from[1] = ConstRowsOf(args.v_new);
  params.to[0] = RowsOf(args.k_old);
  params.to[1] = RowsOf(args.v_old);
  params.heads = static_cast<int32_t>(args.k_old.extent[1]);
  params.dim[0] = static_cast<int32_t>(args.k_old.extent[2]);
  params.dim[1] = static_cast<int32_t>(args.v_old.extent[2]);
  return call.Launch(LaunchFuse, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const GatherRowsArgs& args) {
  CudaChecker check("GatherRows", context, args);
  for (const auto& [name, view] : {std::pair("in", args.in), {"out", ConstTensorView(args.out)}}) {
    int64_t dense = 1;
    for (int dim = view.rank - 1; dim >= 1; --dim) {
      if (view.extent[dim] > 1 && view.stride[dim] != dense && !view.empty()) {
        check.Take(InvalidArgument("GatherRows: ", name, " is ", view.DebugString(),
                                   "; on CUDA the elements of a row follow each other"));
      }
      dense *= view.extent[dim];
    }
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<GatherRowsArgs>& checked) {
  const GatherRowsArgs& args = checked.args();
  if (args.out.empty()) return absl::OkStatus();
  const int64_t bytes = ElementBytes(args.in.dtype);
  GatherRowsParams params;
  params.index = args.index.as<int32_t>();
  params.index_stride = args.index.stride[0];
  params.num_rows = args.index.extent[0];
  params.num_sources = args.in.extent[0];
  params.row_bytes = args.out.num_elements() / args.out.extent[0] * bytes;
  params.from = args.in.data;
  params.from_stride = args.in.stride[0] * bytes;
  params.to = args.out.data;
  params.to_stride = args.out.stride[0] * bytes;
  return call.Launch(LaunchGatherRows, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const RotateKeysArgs& args) {
  CudaChecker check("RotateKeys", context, args);
  return check.Moved("in", args.in).Moved("out", args.out).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<RotateKeysArgs>& checked) {
  const RotateKeysArgs& args = checked.args();
  if (args.in.empty()) return absl::OkStatus();
  RotateParams params;
  params.from = ConstRowsOf(args.in);
  params.to = RowsOf(args.out);
  params.num_tokens = args.in.extent[0];
  params.heads = static_cast<int32_t>(args.in.extent[1]);
  params.dim = static_cast<int32_t>(args.in.extent[2]);
  params.rotary_dim = static_cast<int32_t>(args.rotary_dim == 0 ? params.dim : args.rotary_dim);
  params.positions = args.positions.data;
  params.positions_stride = args.positions.stride[0];
  params.positions_are_wide = args.positions.dtype == DType::kI64;
  if (!args.from_positions.absent()) {
    params.from_positions = args.from_positions.data;
    params.from_positions_stride = args.from_positions.stride[0];
    params.from_positions_are_wide = args.from_positions.dtype == DType::kI64;
  }
  params.theta = args.theta;
  params.interleaved = args.pairs == RotaryPairs::kInterleaved;
  return call.Launch(LaunchRotate, params);
}

// What writes rows: keys of an indexer, and the compressor.

namespace {

constexpr int64_t kMostStateDim = 8192;  // a row in shared memory

}  // namespace

absl::Status CheckOnCuda(const ExecContext& context, const CacheIndexKeysArgs& args) {
  CudaChecker check("CacheIndexKeys", context, args);
  check.Values("k", args.k).Values("cache.rows", args.cache.rows);
  return check.Take(PlanarAligned("CacheIndexKeys", args.cache)).status();
}

absl::Status Enqueue(CudaCall& call, const Checked<CacheIndexKeysArgs>& checked) {
  const CacheIndexKeysArgs& args = checked.args();
  if (args.slot_mapping.empty() || args.k.empty()) return absl::OkStatus();
  IndexWriteParams params;
  params.from = ConstRowsOf(args.k);
  params.to = IndexRowsOf(args.cache, args.k.extent[1]);
  params.slots = args.slot_mapping.as<int64_t>();
  params.slot_stride = args.slot_mapping.stride[0];
  params.num_tokens = args.slot_mapping.extent[0];
  params.power_of_two = args.power_of_two_scales;
  return call.Launch(LaunchIndexWrite, params);
}

absl::Status CheckOnCuda(const ExecContext& context, const CompressTokensArgs& args) {
  CudaChecker check("CompressTokens", context, args);
  check.Values("kv", args.kv).Values("score", args.score).Values("out", args.out);
  check.Values("states", args.states).Dense("bias", args.bias).Dense("cos_sin", args.cos_sin);
  check.Dense("block_table", args.block_table);
  if (check.status().ok() && args.out.extent[1] > kMostStateDim) {
    check.Take(absl::UnimplementedError(absl::StrCat("CompressTokens: rows of ", args.out.extent[1],
                                                     " values; CUDA is built for at most ",
                                                     kMostStateDim)));
  }
  return check.status();
}

absl::Status Enqueue(CudaCall& call, const Checked<CompressTokensArgs>& checked) {
  const CompressTokensArgs& args = checked.args();
  if (args.kv.empty()) return absl::OkStatus();
  CompressParams params;
  params.kv = ConstRowsOf(args.kv);
  params.score = ConstRowsOf(args.score);
  if (!args.bias.absent()) {
    params.bias = args.bias.as<float>();
    params.bias_stride = args.bias.stride[0];
  }
  params.states = args.states.as<float>();
  params.block_stride = args.states.stride[0];
  params.row_stride = args.states.stride[1];
  params.num_blocks = static_cast<int32_t>(args.states.extent[0]);
  params.block_size = static_cast<int32_t>(args.states.extent[1]);
  params.slots = args.slot_mapping.as<int64_t>();
  params.slot_stride = args.slot_mapping.stride[0];
  params.num_slots = args.slot_mapping.extent[0];
  params.batch = RowBatchOf(args);
  params.num_tokens = static_cast<int32_t>(args.kv.extent[0]);
  params.ratio = static_cast<int32_t>(args.ratio);
  params.parts = args.overlap ? 2 : 1;
  params.dim = static_cast<int32_t>(args.out.extent[1]);
  if (!args.norm_weight.absent()) {
    params.norm_weight = args.norm_weight.as<float>();
    params.norm_stride = args.norm_weight.stride[0];
  }
  params.norm_eps = args.norm_eps;
  if (!args.cos_sin.absent()) {
    params.cos_sin = args.cos_sin.as<float>();
    params.cos_sin_stride = args.cos_sin.stride[0];
    params.num_positions = args.cos_sin.extent[0];
    params.rotary = static_cast<int32_t>(args.cos_sin.extent[1]);
  }
  params.out = RowsOf(args.out);
  return call.Launch(LaunchCompress, params);
}

}  // namespace kvblocks::attention::cuda

namespace kvblocks::attention {

#define KVBLOCKS_CUDA_ROW_OP(Op) KVBLOCKS_DEFINE_ON_CUDA(CudaRowOps, Op)
KVBLOCKS_KV_ROW_OPS(KVBLOCKS_CUDA_ROW_OP)
#undef KVBLOCKS_CUDA_ROW_OP

}  // namespace kvblocks::attention
