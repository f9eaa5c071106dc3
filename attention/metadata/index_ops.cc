// Slots and lists of slots on the host: what index operations refuse, and what they fill in.

#include <algorithm>
#include <limits>

#include "attention/metadata/host_index_checks.h"
#include "attention/metadata/slot_mapping.h"
#include "checks/checked_int64.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

namespace {

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
  IndexChecker check(context, kSlots);
  check.Ratio(args.ratio);
  check.Batch(args);
  check.Read("positions", args.positions, 1, num_tokens);
  check.Write("slot_mapping", args.slot_mapping, 1, num_tokens, -1, DType::kI64);
  return check.Finish();
}

absl::Status CheckTensors(const ExecContext& context, const TopkSlotsArgs& args,
                          int64_t num_tokens) {
  IndexChecker check(context, kTopk);
  check.Batch(args);
  check.Write("slots", args.slots, 2, num_tokens);
  const int64_t columns = args.slots.extent[1];
  // The same tensor is read before it is written, entry by entry.
  if (args.slots.data == args.indices.data) {
    check.Dense("indices", args.indices, 2, num_tokens, columns);
  } else {
    check.Read("indices", args.indices, 2, num_tokens, columns);
  }
  check.Write("counts", args.counts, 1, args.slots.extent[0]);
  return check.Finish();
}

absl::Status CheckTensors(const ExecContext& context, const DenseCompressedIndicesArgs& args,
                          int64_t num_tokens) {
  IndexChecker check(context, kDense);
  check.Ratio(args.ratio);
  check.Read("query_start_loc", args.query_start_loc, 1, 1);
  check.Read("positions", args.positions, 1, num_tokens);
  check.Write("indices", args.indices, 2, num_tokens);
  check.Write("lens", args.lens, 1, args.indices.extent[0]);
  return check.Finish();
}

absl::Status CheckTensors(const ExecContext& context, const PrefillIndicesArgs& args,
                          int64_t num_tokens) {
  IndexChecker check(context, kPrefill);
  check.Window(args.window);
  check.Ratio(args.ratio);
  check.Read("query_start_loc", args.query_start_loc, 1, 1);
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  const bool is_compressed = !args.topk.absent();
  check.Read("seq_lens", args.seq_lens, 1, num_reqs);
  if (is_compressed) check.Read("topk", args.topk, 2, num_tokens);
  // No sum of a window that was refused.
  if (!check.ok()) return check.status();
  const int64_t topk = is_compressed ? args.topk.extent[1] : 0;
  check.Write("indices", args.indices, 2, num_tokens, topk + args.window);
  check.Write("lens", args.lens, 1, args.indices.extent[0]);
  KVBLOCKS_RETURN_IF_ERROR(check.Finish());
  if (!is_compressed && args.ratio > 1) {
    check.Invalid("topk is absent, but ratio is ", args.ratio,
                  "; a compressed layer needs its top-k list");
  }
  const int64_t rows = args.rows_per_request, compressed_rows = args.compressed_rows;
  if (compressed_rows < 0 || rows < compressed_rows ||
      (num_reqs > 0 && rows > kMaxInt32 / num_reqs)) {
    check.Invalid("rows_per_request is ", rows, " and compressed_rows ", compressed_rows, " for ",
                  num_reqs, " requests; 0 <= compressed_rows <= rows_per_request, and rows must "
                  "fit in i32");
  }
  return check.status();
}

absl::Status BuildCompressedSlots(const CompressedSlotsArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kSlots, args, std::numeric_limits<int64_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  KVBLOCKS_RETURN_IF_ERROR(CheckPositions(kSlots, args.positions, num_tokens));
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* positions = args.positions.as<int32_t>();
  const auto completes = [&](int64_t t) { return (positions[t] + int64_t{1}) % args.ratio == 0; };
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      if (!completes(t)) continue;
      const int64_t row = positions[t] / args.ratio;
      KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, row, row + 1));
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
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  KVBLOCKS_RETURN_IF_ERROR(CheckPositions(kDense, args.positions, num_tokens));
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
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  KVBLOCKS_RETURN_IF_ERROR(CheckSeqLens(kPrefill, args.query_start_loc, args.seq_lens));
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

namespace {

constexpr char kWindows[] = "BuildSwaIndices";

}  // namespace

absl::Status CheckTensors(const ExecContext& context, const WindowIndicesArgs& args,
                          int64_t num_tokens) {
  IndexChecker check(context, kWindows);
  check.Window(args.window);
  check.Batch(args);
  if (args.sink_rows < 0 || args.sink_rows > kMaxInt32) {
    check.Invalid("sink_rows is ", args.sink_rows, "; it must be from 0 to ", kMaxInt32);
  }
  if (!check.ok()) return check.status();
  check.Read("seq_lens", args.seq_lens, 1, args.query_start_loc.extent[0] - 1);
  check.Write("indices", args.indices, 2, num_tokens,
              args.sink_rows + std::min(args.window, kMaxInt32));
  check.Write("lens", args.lens, 1, args.indices.extent[0]);
  return check.Finish();
}

absl::Status BuildSwaIndices(const WindowIndicesArgs& args) {
  const int64_t window = args.window;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kWindows, args, std::numeric_limits<int32_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  KVBLOCKS_RETURN_IF_ERROR(CheckSeqLens(kWindows, args.query_start_loc, args.seq_lens));
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* seq_lens = args.seq_lens.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    const int64_t query_len = starts[b + 1] - starts[b];
    if (query_len == 0) continue;
    if (seq_lens[b] - query_len < args.sink_rows) {
      return InvalidArgument(kWindows, ": request ", b, ": seq_lens is ", seq_lens[b],
                             ", less than its ", query_len, " new tokens and ", args.sink_rows,
                             " sink rows, which it must include");
    }
    const int64_t first = std::max(args.sink_rows, seq_lens[b] - query_len - window + 1);
    KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, 0, args.sink_rows));
    KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, first, seq_lens[b]));
  }

  const int64_t width = args.sink_rows + window;
  auto* row = args.indices.as<int32_t>();
  auto* lens = args.lens.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    int64_t p = seq_lens[b] - (starts[b + 1] - starts[b]);
    for (; p < seq_lens[b]; ++p) {
      int64_t k = 0;
      const auto list = [&, &blocks = table](int64_t j, int64_t end) {
        while (j < end) {
          const int64_t run_end = std::min(end, (j / args.block_size + 1) * args.block_size);
          int64_t slot = blocks.Slot(b, j);
          for (; j < run_end; ++j) row[k++] = static_cast<int32_t>(slot++);
        }
      };
      list(0, args.sink_rows);
      list(std::max(p - window + 1, args.sink_rows), p + 1);
      *lens++ = static_cast<int32_t>(k);
      std::fill(row + k, row + width, -1);
      row += width;
    }
  }
  const int64_t padding = args.indices.extent[0] - num_tokens;
  std::fill_n(row, padding * width, -1);
  std::fill_n(lens, args.lens.extent[0] - num_tokens, 0);
  return absl::OkStatus();
}

namespace {

constexpr char kSlotMapping[] = "ComputeSlotMapping";

// The row of a position in the table, or -1: another rank's. Positions below 0 stay below it.
int64_t RowOf(const SlotMappingArgs& args, int64_t position) {
  if (position < 0) return position;
  if (!args.context_parallel.enabled()) return args.sink_rows + position;
  return args.context_parallel.IsLocal(position) ? args.context_parallel.LocalRow(position) : -1;
}

}  // namespace

absl::StatusOr<int64_t> BlockExpansion(int64_t manager_block_size, int64_t kernel_block_size) {
  if (manager_block_size < 1 || kernel_block_size < 1 ||
      manager_block_size % kernel_block_size != 0) {
    return InvalidArgument("block size of the manager is ", manager_block_size, ", of the kernel ",
                           kernel_block_size,
                           "; the first must be a positive multiple of the second");
  }
  return manager_block_size / kernel_block_size;
}

void ExpandBlockIds(absl::Span<const int32_t> ids, int64_t expansion, int32_t* out) {
  if (expansion == 1) {
    std::copy(ids.begin(), ids.end(), out);
    return;
  }
  const auto m = static_cast<int32_t>(expansion);
  for (const int32_t id : ids) {
    for (int32_t i = 0; i < m; ++i) *out++ = id * m + i;
  }
}

void MapBlockIds(const BlockMap& map, absl::Span<const int32_t> ids, int64_t expansion,
                 int32_t* out) {
  for (const int32_t id : ids) {
    const int64_t first = map.First(id);
    for (int64_t i = 0; i < expansion; ++i) {
      *out++ = static_cast<int32_t>(first + i * map.block_stride);
    }
  }
}

absl::Status CheckTensors(const ExecContext& context, const SlotMappingArgs& args,
                          int64_t num_tokens) {
  IndexChecker check(context, kSlotMapping);
  check.Batch(args);
  check.Read("positions", args.positions, 1, num_tokens);
  check.Write("slot_mapping", args.slot_mapping, 1, num_tokens, -1, DType::kI64);
  if (!check.ok()) return check.status();
  const absl::Status parallel = CheckContextParallel(args.context_parallel, args.block_size);
  if (!parallel.ok()) check.Invalid(std::string(parallel.message()));
  if (args.sink_rows < 0 || args.sink_rows > std::numeric_limits<int32_t>::max() ||
      (args.sink_rows > 0 && args.context_parallel.enabled())) {
    check.Invalid("sink_rows is ", args.sink_rows, " with ", args.context_parallel.num_ranks,
                  " ranks; at least 0, and 0 with more than one rank");
  }
  return check.Finish();
}

absl::Status ComputeSlotMapping(const SlotMappingArgs& args) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kSlotMapping, args, std::numeric_limits<int64_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  KVBLOCKS_RETURN_IF_ERROR(CheckTensors(ExecContext(), args, num_tokens));
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* positions = args.positions.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int64_t row = RowOf(args, positions[t]);
      if (row < 0 && positions[t] >= 0) continue;
      KVBLOCKS_RETURN_IF_ERROR(table.CheckRows(b, row, row + 1));
    }
  }

  auto* slots = args.slot_mapping.as<int64_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
      const int64_t row = RowOf(args, positions[t]);
      const bool nowhere =
          row < 0 || args.null_blocks.contains(table.Block(b, row / args.block_size));
      slots[t] = nowhere ? -1 : table.Slot(b, row);
    }
  }
  std::fill(slots + num_tokens, slots + args.slot_mapping.extent[0], int64_t{-1});
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
