// CPU_REFERENCE's multi-head latent attention: one latent head serves all query heads.

#include <algorithm>
#include <utility>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/reference_engine.h"
#include "attention/cpu/reference_rows.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

// The first topk_len entries of a list of K, or all of them.
int64_t UsedEntries(const ConstTensorView& topk_len, int64_t b, int64_t num_entries) {
  if (topk_len.absent()) return num_entries;
  return std::clamp<int64_t>(IndexAt(topk_len, b), 0, num_entries);
}

// Appends the valid slots of query (b, s).
void AppendList(const ExecContext& context, const SparseKeys& keys, bool extra, int64_t b,
                int64_t s, std::vector<ListedRows::Entry>& list) {
  if (keys.cache.absent()) return;
  const int64_t used = UsedEntries(keys.topk_len, b, keys.indices.extent[2]);
  for (int64_t k = 0; k < used; ++k) {
    const int64_t slot = static_cast<int64_t>(
        LoadElement(keys.indices.dtype, keys.indices.At(b, s, k)));
    if (slot >= keys.cache.num_slots()) Flag(context, kBadIndex);
    if (slot >= 0 && slot < keys.cache.num_slots()) list.push_back({slot, extra});
  }
}

// One request per query, whose keys are its list; nothing hides any of them.
std::vector<AttendRequest> ListRequests(
    const std::vector<std::vector<ListedRows::Entry>>& lists) {
  std::vector<AttendRequest> requests(lists.size());
  for (size_t n = 0; n < lists.size(); ++n) {
    requests[n].index = requests[n].first_row = static_cast<int64_t>(n);
    requests[n].q_len = 1;
    requests[n].kv_len = static_cast<int64_t>(lists[n].size());
  }
  return requests;
}

}  // namespace

absl::Status CpuReferenceOps::Run(const Checked<MlaDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const MlaDecodeArgs& args = call.args();
  const bool contiguous = args.block_table.absent();
  const PagedRows keys(args.cache, args.block_table, args.params.scales, /*shared_prefix=*/0,
                       args.kv_start_loc);
  AttendBatch batch;
  batch.num_heads = args.q_lat.extent[1];
  batch.key_dim = args.cache.key_dim();
  batch.value_dim = args.cache.value_dim();
  batch.keys = &keys;
  batch.params = &args.params;
  const bool varlen = !args.query_start_loc.absent();
  const int64_t num_requests =
      varlen ? std::max<int64_t>(1, args.query_start_loc.extent[0]) - 1 : args.q_lat.extent[0];
  for (int64_t b = 0; b < num_requests; ++b) {
    AttendRequest request;
    request.index = b;
    request.first_row = varlen ? IndexAt(args.query_start_loc, b) : b;
    request.q_len = varlen ? IndexAt(args.query_start_loc, b + 1) - request.first_row : 1;
    request.kv_len = contiguous ? IndexAt(args.kv_start_loc, b + 1) - IndexAt(args.kv_start_loc, b)
                                : IndexAt(args.seq_lens, b);
    request.cuts = CutsOf(args.params.split, request.kv_len, args.cache.block_size());
    batch.requests.push_back(std::move(request));
  }
  const ReferenceWriter writer = {args.params.sinks, 0, args.out, args.lse};
  Attend(
      context, batch,
      [&](int64_t row, int64_t head, double* out) {
        const ConstTensorView& lat = args.q_lat;
        LoadElements(lat.dtype, lat.At(row, head), lat.stride[2], lat.extent[2], out);
        const ConstTensorView& pe = args.q_pe;
        if (pe.absent()) return;
        LoadElements(pe.dtype, pe.At(row, head), pe.stride[2], pe.extent[2], out + lat.extent[2]);
      },
      [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
        const double lse = MergePieces(pieces);
        writer.Write(row, head, pieces[0].values, lse);
      });
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<SparseMlaDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const SparseMlaDecodeArgs& args = call.args();
  const int64_t num_requests = args.q.extent[0], q_len = args.q.extent[1];
  std::vector<std::vector<ListedRows::Entry>> lists(num_requests * q_len);
  for (int64_t b = 0; b < num_requests; ++b) {
    for (int64_t s = 0; s < q_len; ++s) {
      AppendList(context, args.main, false, b, s, lists[b * q_len + s]);
      AppendList(context, args.extra, true, b, s, lists[b * q_len + s]);
    }
  }
  AttnParams params;
  params.scale = args.scale;
  params.causal = false;
  AttendBatch batch;
  batch.num_heads = args.q.extent[2];
  batch.key_dim = args.main.cache.key_dim();
  batch.value_dim = args.main.cache.value_dim();
  batch.requests = ListRequests(lists);
  batch.params = &params;
  const double kv_scale =
      args.kv_scale.absent() ? 1 : LoadElement(args.kv_scale.dtype, args.kv_scale.data);
  const ListedRows keys(args.main.cache, args.extra.cache, kv_scale, std::move(lists));
  batch.keys = &keys;
  Attend(
      context, batch,
      [&](int64_t row, int64_t head, double* out) {
        LoadElements(args.q.dtype, args.q.At(row / q_len, row % q_len, head), args.q.stride[3],
                     args.q.extent[3], out);
      },
      [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
        ReferenceWriter writer = {args.sinks, 0, args.out, args.lse};
        // The rows of this request as tensors of their own: [s_q, H, Dv] and [s_q, H].
        writer.out = args.out.Select(0, row / q_len).value();
        if (!args.lse.absent()) writer.lse = args.lse.Select(0, row / q_len).value();
        const double lse = MergePieces(pieces);
        writer.Write(row % q_len, head, pieces[0].values, lse);
      });
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<SparseMlaPrefillArgs>& call) const {
  const ExecContext& context = call.context();
  const SparseMlaPrefillArgs& args = call.args();
  const int64_t num_tokens = args.q.extent[0], num_rows = args.kv.extent[0];
  // The tensor as a latent cache of one block, which lists of rows look up.
  ConstKvCacheView cache;
  cache.layout = KvLayout::kMlaLatent;
  absl::StatusOr<ConstTensorView> latent = args.kv.Permute({1, 0, 2});
  if (!latent.ok()) return latent.status();
  absl::StatusOr<ConstTensorView> values = latent->Slice(2, 0, args.out.extent[2]);
  if (!values.ok()) return values.status();
  cache.k = *latent;
  cache.v = *values;

  std::vector<std::vector<ListedRows::Entry>> lists(num_tokens);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int64_t used = UsedEntries(args.topk_len, t, args.indices.extent[2]);
    for (int64_t k = 0; k < used; ++k) {
      const int64_t row = static_cast<int64_t>(
          LoadElement(args.indices.dtype, args.indices.At(t, 0, k)));
      if (row >= num_rows) Flag(context, kBadIndex);
      if (row >= 0 && row < num_rows) lists[t].push_back({row, false});
    }
  }
  AttnParams params;
  params.scale = args.scale;
  params.causal = false;
  AttendBatch batch;
  batch.num_heads = args.q.extent[1];
  batch.key_dim = args.kv.extent[2];
  batch.value_dim = args.out.extent[2];
  batch.requests = ListRequests(lists);
  batch.params = &params;
  const ListedRows keys(cache, {}, 1, std::move(lists));
  batch.keys = &keys;
  const ReferenceWriter writer = {args.sinks, 0, args.out, args.lse};
  Attend(
      context, batch,
      [&](int64_t row, int64_t head, double* out) {
        LoadElements(args.q.dtype, args.q.At(row, head), args.q.stride[2], args.q.extent[2], out);
      },
      [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
        if (!args.max_logits.absent()) {
          StoreElement(args.max_logits.dtype, pieces[0].max, args.max_logits.At(row, head));
        }
        const double lse = MergePieces(pieces);
        writer.Write(row, head, pieces[0].values, lse);
      });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
