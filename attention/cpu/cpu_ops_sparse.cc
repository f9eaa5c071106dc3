// CPU's attention over lists of latent rows.

#include <cstring>
#include <utility>
#include <vector>

#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/simd_dense.h"
#include "attention/cpu/simd_states.h"

namespace kvblocks::attention {
namespace {

using simd::KeyLists;
using simd::RowWriter;
using simd::State;

// Adds the list of the next query: the entries of the first topk_len[b] that lie in the cache.
void AddList(const ExecContext& context, const ConstTensorView& indices, int64_t i, int64_t s,
             const ConstTensorView& topk_len, int64_t b, int64_t capacity, KeyLists* lists) {
  int64_t used = indices.extent[2];
  if (!topk_len.absent()) {
    int32_t length;
    std::memcpy(&length, topk_len.At(b), sizeof(length));
    used = std::min<int64_t>(used, length);
  }
  for (int64_t k = 0; k < used; ++k) {
    int32_t slot;
    std::memcpy(&slot, indices.At(i, s, k), sizeof(slot));
    if (slot >= capacity) Flag(context, kBadIndex);
    if (slot >= 0 && slot < capacity) lists->slots.push_back(slot);
  }
  lists->starts.push_back(static_cast<int64_t>(lists->slots.size()));
}

double CodeScale(const ConstKvCacheView& cache, const ConstTensorView& kv_scale) {
  const bool own_scales =
      cache.layout == KvLayout::kMlaFp8_656 || cache.layout == KvLayout::kMlaFp8_584;
  if (kv_scale.absent() || own_scales || !IsQuantizedCode(cache.k.dtype)) return 1;
  return LoadElement(kv_scale.dtype, kv_scale.data);
}

}  // namespace

absl::Status CpuOps::Run(const Checked<SparseMlaDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const SparseMlaDecodeArgs& args = call.args();
  if (args.q.dtype == DType::kF64 || args.out.dtype == DType::kF64 ||
      args.main.cache.k.dtype == DType::kF64) {
    return CpuReference().Run(call);
  }
  const int64_t num_requests = args.q.extent[0], q_len = args.q.extent[1];
  if (args.q.empty()) return absl::OkStatus();
  std::vector<KeyLists> lists;
  for (const SparseKeys* keys : {&args.main, &args.extra}) {
    if (keys->cache.absent()) continue;
    KeyLists& list = lists.emplace_back();
    list.cache = keys->cache;
    list.code_scale = CodeScale(keys->cache, args.kv_scale);
    list.starts = {0};
    for (int64_t b = 0; b < num_requests; ++b) {
      for (int64_t s = 0; s < q_len; ++s) {
        AddList(context, keys->indices, b, s, keys->topk_len, b, keys->cache.num_slots(), &list);
      }
    }
  }
  simd::AttendLists(args.q, lists, args.scale, context.threads,
                    [&](int64_t n, int64_t head, const State* states, int64_t num_states) {
                      const int64_t b = n / q_len;
                      const RowWriter writer(
                          args.sinks, 0, args.out.Select(0, b).value(),
                          args.lse.absent() ? TensorView() : args.lse.Select(0, b).value());
                      writer.WriteStates(n % q_len, head, states, num_states);
                    });
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<SparseMlaPrefillArgs>& call) const {
  const ExecContext& context = call.context();
  const SparseMlaPrefillArgs& args = call.args();
  if (args.q.dtype == DType::kF64 || args.out.dtype == DType::kF64 ||
      args.kv.dtype == DType::kF64) {
    return CpuReference().Run(call);
  }
  if (args.q.empty()) return absl::OkStatus();
  std::vector<KeyLists> lists(1);
  absl::StatusOr<ConstTensorView> values = args.kv.Slice(2, 0, args.out.extent[2]);
  if (!values.ok()) return values.status();
  absl::StatusOr<ConstTensorView> query = args.q.Unsqueeze(1);
  if (!query.ok()) return query.status();
  lists[0].cache = simd::AsCache(args.kv, *values);
  lists[0].starts = {0};
  for (int64_t t = 0; t < args.q.extent[0]; ++t) {
    AddList(context, args.indices, t, 0, args.topk_len, t, args.kv.extent[0], &lists[0]);
  }
  const RowWriter writer(args.sinks, 0, args.out, args.lse);
  simd::AttendLists(*query, lists, args.scale, context.threads,
                    [&](int64_t n, int64_t head, const State* states, int64_t num_states) {
                      if (!args.max_logits.absent()) {
                        StoreElement(args.max_logits.dtype, states[0].max,
                                     args.max_logits.At(n, head));
                      }
                      writer.WriteStates(n, head, states, num_states);
                    });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
