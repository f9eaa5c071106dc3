// CPU's attention over K/V heads and dense latent caches, and the merging of states. What lists of
// keys need is in cpu_ops_sparse.cc.


#include <algorithm>
#include <utility>
#include <vector>

#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/reference_engine.h"
#include "attention/cpu/simd_dense.h"
#include "attention/cpu/simd_states.h"

namespace kvblocks::attention {
namespace {

using simd::DenseBatch;
using simd::Pieces;
using simd::PiecesOf;
using simd::RowWriter;
using simd::State;

template <typename... View>
bool AnyF64(const View&... views) {
  return ((!views.absent() && views.dtype == DType::kF64) || ...);
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
  std::vector<int64_t> starts;
  for (int64_t b = 0; b <= num_requests; ++b) starts.push_back(b);
  return starts;
}

DenseBatch PagedBatch(const ConstTensorView& q, const ConstKvCacheView& cache,
                      const ConstTensorView& block_table, const ConstTensorView& seq_lens,
                      const AttnParams& params) {
  DenseBatch batch;
  batch.query = q;
  batch.cache = cache;
  batch.block_table = block_table;
  batch.lengths = simd::IntegersOf(seq_lens);
  batch.params = params;
  batch.params.scales = ScalesOf(cache, params.scales);
  batch.query_start = OneRowEach(batch.num_requests());
  return batch;
}

// Contiguous keys: those of request b are rows [starts[b], starts[b + 1]).
void SetKeyStarts(const std::vector<int64_t>& starts, DenseBatch* batch) {
  for (size_t b = 0; b + 1 < starts.size(); ++b) {
    batch->first_slot.push_back(starts[b]);
    batch->lengths.push_back(starts[b + 1] - starts[b]);
  }
}

std::vector<Pieces> PolicyPieces(const DenseBatch& batch) {
  std::vector<Pieces> pieces;
  for (const int64_t length : batch.lengths) {
    pieces.push_back(
        PiecesOf(0, length, CutsOf(batch.params.split, length, batch.cache.block_size())));
  }
  return pieces;
}

void AttendAndWrite(const ExecContext& context, const DenseBatch& batch,
                    const std::vector<Pieces>& pieces, const RowWriter& writer) {
  if (batch.query.empty()) return;
  simd::AttendDense(batch, pieces, context.threads,
                    [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
                      writer.WriteStates(token, head, states, num_states);
                    });
  writer.WritePadding(batch.query_start.back());
}

}  // namespace

absl::Status CpuOps::Run(const Checked<PagedDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedDecodeArgs& args = call.args();
  if (AnyF64(args.q, args.cache.k, args.out)) return CpuReference().Run(call);
  const DenseBatch batch =
      PagedBatch(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  std::vector<Pieces> pieces;
  if (args.plan == nullptr) {
    pieces = PolicyPieces(batch);
  } else {
    for (int64_t b = 0; b < batch.num_requests(); ++b) {
      pieces.push_back(PiecesOf(0, batch.lengths[b], CutsOf(*args.plan, b, batch.lengths[b])));
    }
  }
  AttendAndWrite(context, batch, pieces, RowWriter(args.params.sinks, 0, args.out, args.lse));
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<PagedDecodePartialArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedDecodePartialArgs& args = call.args();
  if (AnyF64(args.q, args.cache.k)) return CpuReference().Run(call);
  const DenseBatch batch =
      PagedBatch(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  if (batch.query.empty()) return absl::OkStatus();
  std::vector<Pieces> pieces;
  for (const int64_t length : batch.lengths) {
    pieces.push_back(
        PiecesOf(0, length, CutsOf(SplitPolicy::Fixed(args.partition_tokens), length, 1)));
  }
  simd::AttendDense(batch, pieces, context.threads,
                    [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
                      const int64_t values = args.tmp_out.extent[3];
                      std::vector<float> zeros(static_cast<size_t>(values), 0.0f);
                      State none;
                      none.max = -std::numeric_limits<float>::infinity();
                      none.out = zeros.data();
                      for (int64_t part = 0; part < args.max_logits.extent[2]; ++part) {
                        const State& state = part < num_states ? states[part] : none;
                        StoreElement(DType::kF32, state.max, args.max_logits.At(token, head, part));
                        StoreElement(DType::kF32, state.sum, args.exp_sums.At(token, head, part));
                        simd::StoreRow(args.tmp_out, args.tmp_out.Offset(token, head, part),
                                       args.tmp_out.stride[3], values, 0, state.out);
                      }
                    });
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<ReduceSplitsArgs>& call) const {
  const ExecContext& context = call.context();
  const ReduceSplitsArgs& args = call.args();
  if (AnyF64(args.tmp_out, args.out)) return CpuReference().Run(call);
  const int64_t num_heads = args.out.extent[1], num_parts = args.max_logits.extent[2];
  const int64_t values = args.out.extent[2];
  const RowWriter writer(args.sinks, 0, args.out, args.lse);
  ParallelFor(context.threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
    const int64_t row = item / num_heads, head = item % num_heads;
    std::vector<State> states(static_cast<size_t>(num_parts));
    std::vector<float> rows(static_cast<size_t>(num_parts * values));
    for (int64_t part = 0; part < num_parts; ++part) {
      State& state = states[part];
      state.max = static_cast<float>(
          LoadElement(args.max_logits.dtype, args.max_logits.At(row, head, part)));
      state.sum =
          static_cast<float>(LoadElement(args.exp_sums.dtype, args.exp_sums.At(row, head, part)));
      state.out = rows.data() + part * values;
      if (state.sum == 0) continue;
      for (int64_t d = 0; d < values; ++d) {
        rows[part * values + d] = static_cast<float>(
            LoadElement(args.tmp_out.dtype, args.tmp_out.At(row, head, part, d)));
      }
    }
    writer.WriteStates(row, head, states.data(), num_parts);
  });
  return absl::OkStatus();
}

namespace {

DenseBatch PrefillBatch(const PagedPrefillArgs& args) {
  DenseBatch batch = PagedBatch(args.q, args.cache, args.block_table, args.seq_lens, args.params);
  batch.query_start = simd::IntegersOf(args.query_start_loc);
  if (batch.query_start.empty()) batch.query_start = {0};
  batch.query_positions = args.query_positions;
  return batch;
}

}  // namespace

absl::Status CpuOps::Run(const Checked<PagedPrefillArgs>& call) const {
  const ExecContext& context = call.context();
  const PagedPrefillArgs& args = call.args();
  if (AnyF64(args.q, args.cache.k, args.out)) return CpuReference().Run(call);
  const DenseBatch batch = PrefillBatch(args);
  AttendAndWrite(context, batch, PolicyPieces(batch),
                 RowWriter(args.params.sinks, args.out_scale, args.out, args.lse));
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<CascadeArgs>& call) const {
  const ExecContext& context = call.context();
  const CascadeArgs& args = call.args();
  const PagedPrefillArgs& prefill = args.prefill;
  if (AnyF64(prefill.q, prefill.cache.k, prefill.out)) {
    return CpuReference().Run(call);
  }
  const DenseBatch batch = PrefillBatch(prefill);
  if (batch.query.empty()) return absl::OkStatus();
  const RowWriter writer(prefill.params.sinks, prefill.out_scale, prefill.out, prefill.lse);
  const int64_t prefix = args.common_prefix_len;
  if (prefix == 0) {
    AttendAndWrite(context, batch, PolicyPieces(batch), writer);
    return absl::OkStatus();
  }
  // The prefix's states of all rows, until the rest of the keys is there.
  const int64_t num_heads = batch.num_heads(), values = writer.values();
  const int64_t num_rows = batch.query_start.back() * num_heads;
  std::vector<State> prefix_states(static_cast<size_t>(num_rows));
  std::vector<float> prefix_rows(static_cast<size_t>(num_rows * values));
  simd::AttendSharedPrefix(batch, prefix, context.threads,
                           [&](int64_t token, int64_t head, const State* states, int64_t) {
                             const int64_t row = token * num_heads + head;
                             prefix_states[row] = states[0];
                             prefix_states[row].out = prefix_rows.data() + row * values;
                             std::copy_n(states[0].out, values, prefix_rows.data() + row * values);
                           });
  std::vector<Pieces> pieces;
  for (const int64_t length : batch.lengths) pieces.push_back(PiecesOf(prefix, length, {}));
  simd::AttendDense(batch, pieces, context.threads,
                    [&](int64_t token, int64_t head, const State* states, int64_t num_states) {
                      State both[2] = {prefix_states[token * num_heads + head], State{}};
                      if (num_states > 0) both[1] = states[0];
                      writer.WriteStates(token, head, both, 2);
                    });
  writer.WritePadding(batch.query_start.back());
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<VarlenSelfAttentionArgs>& call) const {
  const ExecContext& context = call.context();
  const VarlenSelfAttentionArgs& args = call.args();
  if (AnyF64(args.q, args.k, args.v, args.out)) {
    return CpuReference().Run(call);
  }
  DenseBatch batch;
  batch.query = args.q;
  batch.cache = simd::AsCache(args.k, args.v);
  batch.params = args.params;
  batch.query_start = simd::IntegersOf(args.query_start_loc);
  if (batch.query_start.empty()) batch.query_start = {0};
  batch.query_positions = args.query_positions;
  const std::vector<int64_t> kv_start = KeyStarts(args);
  std::vector<Pieces> pieces;
  SetKeyStarts(kv_start, &batch);
  for (const int64_t length : batch.lengths) pieces.push_back(PiecesOf(0, length, {}));
  AttendAndWrite(context, batch, pieces,
                 RowWriter(args.params.sinks, args.out_scale, args.out, args.lse));
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<MlaDecodeArgs>& call) const {
  const ExecContext& context = call.context();
  const MlaDecodeArgs& args = call.args();
  if (AnyF64(args.q_lat, args.q_pe, args.cache.k, args.out)) {
    return CpuReference().Run(call);
  }
  DenseBatch batch =
      PagedBatch(args.q_lat, args.cache, args.block_table, args.seq_lens, args.params);
  batch.query_rest = args.q_pe;
  if (args.block_table.absent()) {
    SetKeyStarts(simd::IntegersOf(args.kv_start_loc), &batch);
    batch.query_start = OneRowEach(batch.num_requests());
  }
  if (!args.query_start_loc.absent()) {
    batch.query_start = simd::IntegersOf(args.query_start_loc);
    if (batch.query_start.empty()) batch.query_start = {0};
  }
  AttendAndWrite(context, batch, PolicyPieces(batch),
                 RowWriter(args.params.sinks, 0, args.out, args.lse));
  return absl::OkStatus();
}

absl::Status CpuOps::Run(const Checked<MergeStatesArgs>& call) const {
  const ExecContext& context = call.context();
  const MergeStatesArgs& args = call.args();
  if (AnyF64(args.outs, args.out)) return CpuReference().Run(call);
  const int64_t num_states = args.outs.extent[0], num_heads = args.out.extent[1];
  const int64_t values = args.out.extent[2];
  const RowWriter writer({}, args.out_scale, args.out, args.lse);
  ParallelFor(context.threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
    const int64_t row = item / num_heads, head = item % num_heads;
    const bool all = args.tokens_with_context < 0 || row < args.tokens_with_context;
    const int64_t first = all ? 0 : std::max<int64_t>(0, num_states - 1);
    const int64_t count = num_states - first;
    // Copies, because the output may be one of the states.
    std::vector<double> lses(static_cast<size_t>(count));
    std::vector<const float*> rows(static_cast<size_t>(count));
    std::vector<float> copies(static_cast<size_t>(count * simd::Padded(values)));
    ConstTensorView outs = args.outs;
    for (int64_t i = 0; i < count; ++i) {
      lses[i] = LoadElement(args.lses.dtype, args.lses.At(first + i, row, head));
      ConstTensorView state = outs;
      state.data = outs.At(first + i);
      state.rank = 3;
      for (int dim = 0; dim < 3; ++dim) {
        state.extent[dim] = outs.extent[dim + 1];
        state.stride[dim] = outs.stride[dim + 1];
      }
      float* copy = copies.data() + i * simd::Padded(values);
      simd::ReadQuery(state, row, head, copy);
      rows[i] = copy;
    }
    float* merged = writer.Row();
    const double lse = simd::MergeRowsByLse(lses.data(), rows.data(), count, values,
                                            simd::SinkOf(args.sinks, head), merged);
    writer.Write(row, head, lse, merged);
  });
  return absl::OkStatus();
}

const AttentionOps& Cpu() {
  static const CpuOps* const ops = new CpuOps;
  return *ops;
}

}  // namespace kvblocks::attention
