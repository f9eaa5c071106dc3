// Writing and reading the cache.

#include <algorithm>

#include "kvblocks/attention/cuda/cuda_checker.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernel_params.h"
#include "kvblocks/attention/cuda/kernels/cache_write.h"
#include "kvblocks/attention/cuda/kernels/gather.h"
#include "kvblocks/attention/cuda/kernels/kv_scales.h"

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

}  // namespace kvblocks::attention::cuda
