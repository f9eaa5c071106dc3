// The attending operations of the host as batches for an engine.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "attention/cpu/attend_engine.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {
namespace {

// [0, end) with cuts inside.
Pieces PiecesOf(int64_t end, const std::vector<int64_t>& cuts) {
  Pieces pieces = {0};
  if (end <= 0) return pieces;
  for (const int64_t cut : cuts) {
    if (cut > 0 && cut < end) pieces.push_back(cut);
  }
  pieces.push_back(end);
  return pieces;
}

// Where a policy cuts; Auto without a plan is one piece.
std::vector<int64_t> CutsOf(const SplitPolicy& policy, int64_t length, int64_t block_size) {
  int64_t step = 0;
  if (policy.kind == SplitPolicy::Kind::kFixed) step = policy.value;
  if (policy.kind == SplitPolicy::Kind::kCount && policy.value > 0) {
    step = CeilDiv(CeilDiv(length, block_size), policy.value) * block_size;
  }
  std::vector<int64_t> cuts;
  for (int64_t cut = step; step > 0 && cut < length; cut += step) cuts.push_back(cut);
  return cuts;
}

void CutByPolicy(const SplitPolicy& policy, int64_t block_size, DenseBatch* batch) {
  for (const int64_t length : batch->lengths) {
    batch->pieces.push_back(PiecesOf(length, CutsOf(policy, length, block_size)));
  }
}

// The scales that codes of this cache, and of queries, have.
KvScales ScalesOf(const ConstKvCacheView& cache, const KvScales& given) {
  KvScales scales;
  scales.q = given.q;
  if (cache.layout == KvLayout::kMlaFp8_656 || cache.layout == KvLayout::kMlaFp8_584) return scales;
  if (cache.format != KvRowFormat::kElements) return cache.takes_scale() ? given : scales;
  if (IsQuantizedCode(cache.k.dtype)) scales.k = given.k;
  if (IsMla(cache.layout)) {
    scales.v = scales.k;
  } else if (IsQuantizedCode(cache.v.dtype)) {
    scales.v = given.v;
  }
  return scales;
}

std::vector<int64_t> OneRowEach(int64_t num_requests) {
  std::vector<int64_t> starts(static_cast<size_t>(num_requests) + 1);
  std::iota(starts.begin(), starts.end(), 0);
  return starts;
}

// Without pieces; one query per request.
template <typename Args>
DenseBatch PagedBatch(const Args& args, const ConstTensorView& query) {
  DenseBatch batch;
  batch.query = query;
  batch.cache = args.cache;
  batch.block_table = args.block_table;
  batch.lengths = IntegersOf(args.seq_lens);
  batch.params = args.params;
  batch.params.scales = ScalesOf(args.cache, args.params.scales);
  batch.query_start = OneRowEach(batch.num_requests());
  return batch;
}

DenseBatch PrefillBatch(const PagedPrefillArgs& args) {
  DenseBatch batch = PagedBatch(args, args.q);
  batch.query_start = IntegersOf(args.query_start_loc);
  batch.query_positions = args.query_positions;
  return batch;
}

// Contiguous keys: those of request b are rows [starts[b], starts[b + 1]).
void SetKeyStarts(const std::vector<int64_t>& starts, DenseBatch* batch) {
  for (size_t b = 0; b + 1 < starts.size(); ++b) {
    batch->first_slot.push_back(starts[b]);
    batch->lengths.push_back(starts[b + 1] - starts[b]);
  }
}

// Where the keys of each request begin, and where those of the last end.
std::vector<int64_t> KeyStarts(const VarlenSelfAttentionArgs& args) {
  if (args.kv_seq_lens.absent()) {
    return IntegersOf(args.kv_start_loc.absent() ? args.query_start_loc : args.kv_start_loc);
  }
  std::vector<int64_t> starts = {0};
  for (const int64_t length : IntegersOf(args.kv_seq_lens))
    starts.push_back(starts.back() + length);
  return starts;
}

// A contiguous tensor of keys and one of values, [T, Hkv, D] and [T, Hkv, Dv], as a cache of one
// block.
ConstKvCacheView AsCache(const ConstTensorView& k, const ConstTensorView& v) {
  return ConstKvCacheView(KvLayout::kNhd, *k.Unsqueeze(0), *v.Unsqueeze(0));
}

// Adds the list of the next query: the entries of the first topk_len[b] that lie in the cache.
void AddList(const ExecContext& context, const ConstTensorView& indices, int64_t i, int64_t s,
             const ConstTensorView& topk_len, int64_t b, int64_t capacity, KeyLists* lists) {
  int64_t used = indices.extent[2];
  if (!topk_len.absent()) used = std::min<int64_t>(used, IndexAt(topk_len, b));
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

absl::Status HostOps::Run(const Checked<PagedDecodeArgs>& call) const {
  const PagedDecodeArgs& args = call.args();
  DenseBatch batch = PagedBatch(args, args.q);
  if (args.plan == nullptr) CutByPolicy(args.params.split, args.cache.block_size(), &batch);
  for (int64_t b = 0; args.plan != nullptr && b < batch.num_requests(); ++b) {
    std::vector<int64_t> cuts;
    AppendCuts(*args.plan, b, batch.lengths[b], cuts);
    batch.pieces.push_back(PiecesOf(batch.lengths[b], cuts));
  }
  EngineFor(args.q, args.cache.k, args.out)
      .Attend(batch, call.context().threads, {args.params.sinks, 0, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<PagedDecodePartialArgs>& call) const {
  const PagedDecodePartialArgs& args = call.args();
  DenseBatch batch = PagedBatch(args, args.q);
  CutByPolicy(SplitPolicy::Fixed(args.partition_tokens), 1, &batch);
  EngineFor(args.q, args.cache.k).AttendPartitions(batch, call.context().threads, args);
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<ReduceSplitsArgs>& call) const {
  const ReduceSplitsArgs& args = call.args();
  EngineFor(args.tmp_out, args.out).ReduceSplits(call.context().threads, args);
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<PagedPrefillArgs>& call) const {
  const PagedPrefillArgs& args = call.args();
  DenseBatch batch = PrefillBatch(args);
  CutByPolicy(args.params.split, args.cache.block_size(), &batch);
  EngineFor(args.q, args.cache.k, args.out)
      .Attend(batch, call.context().threads,
              {args.params.sinks, args.out_scale, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<CascadeArgs>& call) const {
  const PagedPrefillArgs& args = call.args().prefill;
  DenseBatch batch = PrefillBatch(args);
  batch.shared_prefix = call.args().common_prefix_len;
  if (batch.shared_prefix == 0) {
    CutByPolicy(args.params.split, args.cache.block_size(), &batch);
  } else {
    for (const int64_t length : batch.lengths) {
      batch.pieces.push_back(PiecesOf(length, {batch.shared_prefix}));
    }
  }
  EngineFor(args.q, args.cache.k, args.out)
      .Attend(batch, call.context().threads,
              {args.params.sinks, args.out_scale, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<VarlenSelfAttentionArgs>& call) const {
  const VarlenSelfAttentionArgs& args = call.args();
  DenseBatch batch;
  batch.query = args.q;
  batch.cache = AsCache(args.k, args.v);
  batch.params = args.params;
  batch.query_start = IntegersOf(args.query_start_loc);
  batch.query_positions = args.query_positions;
  SetKeyStarts(KeyStarts(args), &batch);
  CutByPolicy(SplitPolicy::None(), 1, &batch);
  EngineFor(args.q, args.k, args.v, args.out)
      .Attend(batch, call.context().threads,
              {args.params.sinks, args.out_scale, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<MlaDecodeArgs>& call) const {
  const MlaDecodeArgs& args = call.args();
  DenseBatch batch = PagedBatch(args, args.q_lat);
  batch.query_rest = args.q_pe;
  if (args.block_table.absent()) {
    SetKeyStarts(IntegersOf(args.kv_start_loc), &batch);
    batch.query_start = OneRowEach(batch.num_requests());
  }
  if (!args.query_start_loc.absent()) batch.query_start = IntegersOf(args.query_start_loc);
  CutByPolicy(args.params.split, args.cache.block_size(), &batch);
  EngineFor(args.q_lat, args.q_pe, args.cache.k, args.out)
      .Attend(batch, call.context().threads, {args.params.sinks, 0, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<SparseMlaDecodeArgs>& call) const {
  const SparseMlaDecodeArgs& args = call.args();
  std::vector<KeyLists> lists;
  for (const SparseKeys* keys : {&args.main, &args.extra}) {
    if (keys->cache.absent()) continue;
    KeyLists& list = lists.emplace_back();
    list.cache = keys->cache;
    list.code_scale = CodeScale(keys->cache, args.kv_scale);
    list.starts = {0};
    for (int64_t b = 0; b < args.q.extent[0]; ++b) {
      for (int64_t s = 0; s < args.q.extent[1]; ++s) {
        AddList(call.context(), keys->indices, b, s, keys->topk_len, b, keys->cache.num_slots(),
                &list);
      }
    }
  }
  EngineFor(args.q, args.out, args.main.cache.k)
      .AttendLists(args.q, lists, args.scale, call.context().threads,
                   {args.sinks, 0, args.out, args.lse}, {});
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<SparseMlaPrefillArgs>& call) const {
  const SparseMlaPrefillArgs& args = call.args();
  std::vector<KeyLists> lists(1);
  lists[0].cache = AsCache(args.kv, *args.kv.Slice(2, 0, args.out.extent[2]));
  lists[0].starts = {0};
  for (int64_t t = 0; t < args.q.extent[0]; ++t) {
    AddList(call.context(), args.indices, t, 0, args.topk_len, t, args.kv.extent[0], &lists[0]);
  }
  const auto one_each = [](const auto& view) { return view.absent() ? view : *view.Unsqueeze(1); };
  EngineFor(args.q, args.out, args.kv)
      .AttendLists(one_each(args.q), lists, args.scale, call.context().threads,
                   {args.sinks, 0, one_each(args.out), one_each(args.lse)},
                   one_each(args.max_logits));
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<MergeStatesArgs>& call) const {
  const MergeStatesArgs& args = call.args();
  EngineFor(args.outs, args.out).MergeStates(call.context().threads, args);
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
