// CPU_REFERENCE's attention over K/V heads: decode, prefill, contiguous keys, cascade.

#include <algorithm>
#include <numeric>
#include <utility>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/reference_engine.h"
#include "attention/cpu/reference_rows.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

AttendBatch BatchOf(const ConstTensorView& q, const ConstKvCacheView& cache,
                    const AttnParams& params, const KeyRows& keys) {
  AttendBatch batch;
  batch.num_heads = q.extent[1];
  batch.num_kv_heads = cache.num_kv_heads();
  batch.key_dim = cache.key_dim();
  batch.value_dim = cache.value_dim();
  batch.keys = &keys;
  batch.params = &params;
  return batch;
}

std::vector<AttendRequest> DecodeRequests(const ConstTensorView& seq_lens, int64_t num_requests) {
  std::vector<AttendRequest> requests(num_requests);
  for (int64_t b = 0; b < num_requests; ++b) {
    requests[b].index = requests[b].first_row = b;
    requests[b].q_len = 1;
    requests[b].kv_len = IndexAt(seq_lens, b);
  }
  return requests;
}

std::vector<AttendRequest> VarlenRequests(const ConstTensorView& query_start_loc) {
  std::vector<AttendRequest> requests(std::max<int64_t>(1, query_start_loc.extent[0]) - 1);
  for (size_t b = 0; b < requests.size(); ++b) {
    requests[b].index = static_cast<int64_t>(b);
    requests[b].first_row = IndexAt(query_start_loc, b);
    requests[b].q_len = IndexAt(query_start_loc, b + 1) - requests[b].first_row;
  }
  return requests;
}

// Dequantised, if they are codes.
void LoadQuery(const AttendBatch& batch, const ConstTensorView& q, int64_t row, int64_t head,
               double* out) {
  LoadElements(q.dtype, q.At(row, head), q.stride[2], q.extent[2], out);
  const int64_t kv_head = head / (batch.num_heads / batch.num_kv_heads);
  const double scale = ScaleAt(batch.params->scales.q, 0, kv_head);
  for (int64_t d = 0; scale != 1 && d < q.extent[2]; ++d) out[d] *= scale;
}

void AttendAndWrite(const ExecContext& context, const AttendBatch& batch, const ConstTensorView& q,
                    const ReferenceWriter& writer) {
  Attend(
      context, batch,
      [&](int64_t row, int64_t head, double* out) { LoadQuery(batch, q, row, head, out); },
      [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
        const double lse = MergePieces(pieces);
        writer.Write(row, head, pieces[0].values, lse);
      });
}

void RunPagedPrefill(const ExecContext& context, const PagedPrefillArgs& args,
                     int64_t shared_prefix) {
  const PagedRows keys(args.cache, args.block_table, args.params.scales, shared_prefix);
  AttendBatch batch = BatchOf(args.q, args.cache, args.params, keys);
  batch.requests = VarlenRequests(args.query_start_loc);
  batch.query_positions = args.query_positions;
  for (AttendRequest& request : batch.requests) {
    request.kv_len = IndexAt(args.seq_lens, request.index);
    request.cuts = shared_prefix > 0
                       ? CutsAt(shared_prefix, request.kv_len)
                       : CutsOf(args.params.split, request.kv_len, args.cache.block_size());
  }
  AttendAndWrite(context, batch, args.q,
                 {args.params.sinks, args.out_scale, args.out, args.lse});
}

}  // namespace

absl::Status CpuReferenceOps::Run(const Checked<PagedDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedDecodeArgs& args = call.args();
  const PagedRows keys(args.cache, args.block_table, args.params.scales);
  AttendBatch batch = BatchOf(args.q, args.cache, args.params, keys);
  batch.requests = DecodeRequests(args.seq_lens, args.q.extent[0]);
  for (AttendRequest& request : batch.requests) {
    request.cuts = args.plan != nullptr
                       ? CutsOf(*args.plan, request.index, request.kv_len)
                       : CutsOf(args.params.split, request.kv_len, args.cache.block_size());
  }
  AttendAndWrite(context, batch, args.q, {args.params.sinks, 0, args.out, args.lse});
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<PagedDecodePartialArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedDecodePartialArgs& args = call.args();
  const PagedRows keys(args.cache, args.block_table, args.params.scales);
  AttendBatch batch = BatchOf(args.q, args.cache, args.params, keys);
  batch.requests = DecodeRequests(args.seq_lens, args.q.extent[0]);
  for (AttendRequest& request : batch.requests) {
    request.cuts = CutsOf(SplitPolicy::Fixed(args.partition_tokens), request.kv_len, 1);
  }
  Attend(
      context, batch,
      [&](int64_t row, int64_t head, double* out) { LoadQuery(batch, args.q, row, head, out); },
      [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
        const PieceState none;
        const int64_t num_pieces = static_cast<int64_t>(pieces.size());
        for (int64_t part = 0; part < args.max_logits.extent[2]; ++part) {
          const PieceState& piece = part < num_pieces ? pieces[part] : none;
          StoreElement(DType::kF32, piece.max, args.max_logits.At(row, head, part));
          StoreElement(DType::kF32, piece.sum, args.exp_sums.At(row, head, part));
          for (int64_t d = 0; d < args.tmp_out.extent[3]; ++d) {
            const double value = piece.sum == 0 ? 0 : piece.values[d] / piece.sum;
            StoreElement(DType::kF32, value, args.tmp_out.At(row, head, part, d));
          }
        }
      });
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<PagedPrefillArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedPrefillArgs& args = call.args();
  RunPagedPrefill(context, args, 0);
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<CascadeArgs>& call) const {
  const ExecContext& context = call.context();
  const CascadeArgs& args = call.args();
  RunPagedPrefill(context, args.prefill, args.common_prefix_len);
  return absl::OkStatus();
}

absl::Status CpuReferenceOps::Run(const Checked<VarlenSelfAttentionArgs>& call) const {
  const ExecContext& context = call.context();
  const VarlenSelfAttentionArgs& args = call.args();
  const std::vector<int64_t> kv_start = KeyStarts(args);
  AttendBatch batch;
  batch.num_heads = args.q.extent[1];
  batch.num_kv_heads = args.k.extent[1];
  batch.key_dim = args.k.extent[2];
  batch.value_dim = args.v.extent[2];
  batch.requests = VarlenRequests(args.query_start_loc);
  batch.query_positions = args.query_positions;
  batch.params = &args.params;
  std::vector<int64_t> first_row;
  for (AttendRequest& request : batch.requests) {
    first_row.push_back(kv_start[request.index]);
    request.kv_len = kv_start[request.index + 1] - first_row.back();
  }
  const TensorRows keys(args.k, args.v, args.params.scales, std::move(first_row));
  batch.keys = &keys;
  AttendAndWrite(context, batch, args.q,
                 {args.params.sinks, args.out_scale, args.out, args.lse});
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
