#include "kvblocks/attention/metadata/compressed_indices.h"

#include <limits>

#include "kvblocks/attention/metadata/host_index_checks.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

constexpr char kSlots[] = "BuildCompressedSlots";
constexpr char kTopk[] = "BuildTopkSlots";
constexpr char kDense[] = "BuildDenseCompressedIndices";
constexpr char kPrefill[] = "CombinePrefillIndices";

absl::Status CheckPositions(const char* operation, const ConstTensorView& positions,
                            int64_t num_tokens) {
  for (int64_t t = 0; t < num_tokens; ++t) {
    const int32_t p = positions.as<int32_t>()[t];
    if (p < 0) {
      return OutOfRange(operation, ": positions[", t, "] is ", p, "; it must not be negative");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensors(const ExecContext& context, const CompressedSlotsArgs& args,
                          int64_t num_tokens) {
  for (const absl::Status& status :
       {CheckRatio(kSlots, args.ratio), CheckBatchTensors(context, kSlots, args),
        CheckIndexTensor(context, kSlots, "positions", args.positions, DType::kI32, 1, num_tokens),
        CheckIndexTensor(context, kSlots, "slot_mapping", args.slot_mapping, DType::kI64, 1,
                         num_tokens)}) {
    if (!status.ok()) return status;
  }
  return CheckApart(kSlots, {{"slot_mapping", args.slot_mapping}},
                    {{"query_start_loc", args.query_start_loc},
                     {"positions", args.positions},
                     {"block_table", args.block_table}});
}

absl::Status CheckTensors(const ExecContext& context, const TopkSlotsArgs& args,
                          int64_t num_tokens) {
  for (const absl::Status& status :
       {CheckBatchTensors(context, kTopk, args),
        CheckIndexTensor(context, kTopk, "slots", args.slots, DType::kI32, 2, num_tokens),
        CheckIndexTensor(context, kTopk, "indices", args.indices, DType::kI32, 2, num_tokens,
                         args.slots.extent[1]),
        CheckIndexTensor(context, kTopk, "counts", args.counts, DType::kI32, 1,
                         args.slots.extent[0])}) {
    if (!status.ok()) return status;
  }
  // The same tensor is read before it is written, entry by entry.
  const bool in_place = args.slots.data == args.indices.data;
  return CheckApart(kTopk, {{"slots", args.slots}, {"counts", args.counts}},
                    {{"query_start_loc", args.query_start_loc},
                     {"indices", in_place ? ConstTensorView() : args.indices},
                     {"block_table", args.block_table}});
}

absl::Status CheckTensors(const ExecContext& context, const DenseCompressedIndicesArgs& args,
                          int64_t num_tokens) {
  for (const absl::Status& status :
       {CheckRatio(kDense, args.ratio),
        CheckIndexTensor(context, kDense, "query_start_loc", args.query_start_loc, DType::kI32, 1,
                         1),
        CheckIndexTensor(context, kDense, "positions", args.positions, DType::kI32, 1, num_tokens),
        CheckIndexTensor(context, kDense, "indices", args.indices, DType::kI32, 2, num_tokens),
        CheckIndexTensor(context, kDense, "lens", args.lens, DType::kI32, 1,
                         args.indices.extent[0])}) {
    if (!status.ok()) return status;
  }
  return CheckApart(kDense, {{"indices", args.indices}, {"lens", args.lens}},
                    {{"query_start_loc", args.query_start_loc}, {"positions", args.positions}});
}

absl::Status CheckTensors(const ExecContext& context, const PrefillIndicesArgs& args,
                          int64_t num_tokens) {
  for (const absl::Status& status :
       {CheckWindow(kPrefill, args.window), CheckRatio(kPrefill, args.ratio),
        CheckIndexTensor(context, kPrefill, "query_start_loc", args.query_start_loc, DType::kI32, 1,
                         1)}) {
    if (!status.ok()) return status;
  }
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  const bool is_compressed = !args.topk.absent();
  const int64_t topk = is_compressed ? args.topk.extent[1] : 0;
  for (const absl::Status& status :
       {CheckIndexTensor(context, kPrefill, "seq_lens", args.seq_lens, DType::kI32, 1, num_reqs),
        is_compressed
            ? CheckIndexTensor(context, kPrefill, "topk", args.topk, DType::kI32, 2, num_tokens)
            : absl::OkStatus(),
        CheckIndexTensor(context, kPrefill, "indices", args.indices, DType::kI32, 2, num_tokens,
                         topk + args.window),
        CheckIndexTensor(context, kPrefill, "lens", args.lens, DType::kI32, 1,
                         args.indices.extent[0])}) {
    if (!status.ok()) return status;
  }
  const absl::Status apart = CheckApart(kPrefill, {{"indices", args.indices}, {"lens", args.lens}},
                                        {{"query_start_loc", args.query_start_loc},
                                         {"seq_lens", args.seq_lens},
                                         {"topk", args.topk}});
  if (!apart.ok()) return apart;
  if (!is_compressed && args.ratio > 1) {
    return InvalidArgument(kPrefill, ": topk is absent, but ratio is ", args.ratio,
                           "; a compressed layer needs its top-k list");
  }
  const int64_t rows = args.rows_per_request, compressed_rows = args.compressed_rows;
  if (compressed_rows < 0 || rows < compressed_rows ||
      (num_reqs > 0 && rows > kMaxInt32 / num_reqs)) {
    return InvalidArgument(
        kPrefill, ": rows_per_request is ", rows, " and compressed_rows ", compressed_rows, " for ",
        num_reqs, " requests; 0 <= compressed_rows <= rows_per_request, and rows must fit in i32");
  }
  return absl::OkStatus();
}

absl::Status BuildCompressedSlots(const CompressedSlotsArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kSlots, args, std::numeric_limits<int64_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  absl::Status status = CheckTensors(ExecContext(), args, num_tokens);
  if (status.ok()) status = CheckPositions(kSlots, args.positions, num_tokens);
  if (!status.ok()) return status;
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* positions = args.positions.as<int32_t>();
  const auto completes = [&](int64_t t) { return (positions[t] + int64_t{1}) % args.ratio == 0; };
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      if (!completes(t)) continue;
      const int64_t row = positions[t] / args.ratio;
      status = table.CheckRows(b, row, row + 1);
      if (!status.ok()) return status;
    }
  }
  auto* slots = args.slot_mapping.as<int64_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      slots[t] = completes(t) ? table.Slot(b, positions[t] / args.ratio) : -1;
    }
  }
  std::fill(slots + num_tokens, slots + args.slot_mapping.extent[0], int64_t{-1});
  return absl::OkStatus();
}

absl::Status BuildTopkSlots(const TopkSlotsArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch, CheckBatch(kTopk, args, kMaxInt32));
  const auto& [num_reqs, num_tokens, table] = batch;
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  const int64_t topk = args.slots.extent[1];
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* indices = args.indices.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t i = starts[b] * topk; i < starts[b + 1] * topk; ++i) {
      if (indices[i] < 0) continue;
      KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, indices[i], indices[i] + int64_t{1}));
    }
  }
  auto* slots = args.slots.as<int32_t>();
  auto* counts = args.counts.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      counts[t] = 0;
      for (int64_t i = t * topk; i < (t + 1) * topk; ++i) {
        counts[t] += indices[i] >= 0;
        slots[i] = indices[i] < 0 ? -1 : static_cast<int32_t>(table.Slot(b, indices[i]));
      }
    }
  }
  std::fill(slots + num_tokens * topk, slots + args.slots.extent[0] * topk, -1);
  std::fill(counts + num_tokens, counts + args.counts.extent[0], 0);
  return absl::OkStatus();
}

absl::Status BuildDenseCompressedIndices(const DenseCompressedIndicesArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t num_tokens,
                            CheckQueryStartLoc(kDense, args.query_start_loc));
  absl::Status status = CheckTensors(ExecContext(), args, num_tokens);
  if (status.ok()) status = CheckPositions(kDense, args.positions, num_tokens);
  if (!status.ok()) return status;
  const int64_t capacity = args.indices.extent[1];
  auto* row = args.indices.as<int32_t>();
  auto* lens = args.lens.as<int32_t>();
  for (int64_t t = 0; t < args.lens.extent[0]; ++t) {
    lens[t] = 0;
    if (t < num_tokens) {
      const int64_t complete = (args.positions.as<int32_t>()[t] + int64_t{1}) / args.ratio;
      lens[t] = static_cast<int32_t>(std::min(complete, capacity));
    }
    if (t >= args.indices.extent[0]) continue;
    for (int32_t k = 0; k < lens[t]; ++k) row[k] = k;
    std::fill(row + lens[t], row + capacity, -1);
    row += capacity;
  }
  return absl::OkStatus();
}

absl::Status CombinePrefillIndices(const PrefillIndicesArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t num_tokens,
                            CheckQueryStartLoc(kPrefill, args.query_start_loc));
  absl::Status status = CheckTensors(ExecContext(), args, num_tokens);
  if (status.ok()) status = CheckSeqLens(kPrefill, args.query_start_loc, args.seq_lens);
  if (!status.ok()) return status;
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1, window = args.window;
  const bool is_compressed = !args.topk.absent();
  const int64_t topk = is_compressed ? args.topk.extent[1] : 0;
  const int64_t rows = args.rows_per_request, compressed_rows = args.compressed_rows;
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* seq_lens = args.seq_lens.as<int32_t>();
  const auto* list = is_compressed ? args.topk.as<int32_t>() : nullptr;
  const auto num_compressed = [&](int64_t p) { return std::min((p + 1) / args.ratio, topk); };
  for (int64_t b = 0; b < num_reqs; ++b) {
    const int64_t query_len = starts[b + 1] - starts[b];
    const int64_t gathered = WindowGatherLen(query_len, seq_lens[b], window);
    if (query_len > 0 && gathered > rows - compressed_rows) {
      return OutOfRange(kPrefill, ": request ", b, " gathers ", gathered, " tokens behind ",
                        compressed_rows, " compressed rows; rows_per_request is ", rows);
    }
    for (int64_t i = 0; i < query_len; ++i) {
      const int64_t t = starts[b] + i;
      for (int64_t k = 0; k < num_compressed(seq_lens[b] - query_len + i); ++k) {
        if (list[t * topk + k] < compressed_rows) continue;
        return OutOfRange(kPrefill, ": request ", b, ": topk[", t, ", ", k, "] is ",
                          list[t * topk + k], "; compressed_rows is ", compressed_rows);
      }
    }
  }

  auto* row = args.indices.as<int32_t>();
  auto* lens = args.lens.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    const int64_t query_len = starts[b + 1] - starts[b];
    const int64_t gather_start = seq_lens[b] - WindowGatherLen(query_len, seq_lens[b], window);
    const int64_t compressed_base = b * rows;
    const int64_t window_base = b * rows + compressed_rows - gather_start;
    for (int64_t i = 0; i < query_len; ++i) {
      const int64_t t = starts[b] + i, p = seq_lens[b] - query_len + i;
      int64_t n = 0;
      for (; n < num_compressed(p); ++n) {
        const int32_t local = list[t * topk + n];
        row[n] = local < 0 ? -1 : static_cast<int32_t>(compressed_base + local);
      }
      for (int64_t u = std::max<int64_t>(p - window + 1, 0); u <= p; ++u) {
        row[n++] = static_cast<int32_t>(window_base + u);
      }
      lens[t] = static_cast<int32_t>(n);
      std::fill(row + n, row + topk + window, -1);
      row += topk + window;
    }
  }
  std::fill_n(row, (args.indices.extent[0] - num_tokens) * (topk + window), -1);
  std::fill(lens + num_tokens, lens + args.lens.extent[0], 0);
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
