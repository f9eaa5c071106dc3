#include "kvblocks/attention/metadata/window_indices.h"

#include <algorithm>
#include <limits>

#include "kvblocks/attention/metadata/host_index_checks.h"
#include "kvblocks/checks/status_macros.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks::attention {

namespace {

constexpr char kOp[] = "BuildSwaIndices";
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

}  // namespace

absl::Status CheckTensors(const ExecContext& context, const WindowIndicesArgs& args,
                          int64_t num_tokens) {
  absl::Status status = CheckWindow(kOp, args.window);
  if (status.ok()) status = CheckBatchTensors(context, kOp, args);
  if (status.ok() && (args.sink_rows < 0 || args.sink_rows > kMaxInt32)) {
    status = InvalidArgument(kOp, ": sink_rows is ", args.sink_rows, "; it must be from 0 to ",
                             kMaxInt32);
  }
  if (!status.ok()) return status;
  for (const absl::Status& each :
       {CheckIndexTensor(context, kOp, "seq_lens", args.seq_lens, DType::kI32, 1,
                         args.query_start_loc.extent[0] - 1),
        CheckIndexTensor(context, kOp, "indices", args.indices, DType::kI32, 2, num_tokens,
                         args.sink_rows + std::min(args.window, kMaxInt32)),
        CheckIndexTensor(context, kOp, "lens", args.lens, DType::kI32, 1,
                         args.indices.extent[0])}) {
    if (!each.ok()) return each;
  }
  return CheckApart(kOp, {{"indices", args.indices}, {"lens", args.lens}},
                    {{"query_start_loc", args.query_start_loc},
                     {"seq_lens", args.seq_lens},
                     {"block_table", args.block_table}});
}

absl::Status BuildSwaIndices(const WindowIndicesArgs& args) {
  const int64_t window = args.window;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto batch,
                            CheckBatch(kOp, args, std::numeric_limits<int32_t>::max()));
  const auto& [num_reqs, num_tokens, table] = batch;
  absl::Status status = CheckTensors(ExecContext(), args, num_tokens);
  if (status.ok()) status = CheckSeqLens(kOp, args.query_start_loc, args.seq_lens);
  if (!status.ok()) return status;
  const auto* starts = args.query_start_loc.as<int32_t>();
  const auto* seq_lens = args.seq_lens.as<int32_t>();
  for (int64_t b = 0; b < num_reqs; ++b) {
    const int64_t query_len = starts[b + 1] - starts[b];
    if (query_len == 0) continue;
    if (seq_lens[b] - query_len < args.sink_rows) {
      return InvalidArgument(kOp, ": request ", b, ": seq_lens is ", seq_lens[b],
                             ", less than its ", query_len, " new tokens and ", args.sink_rows,
                             " sink rows, which it must include");
    }
    const int64_t first = std::max(args.sink_rows, seq_lens[b] - query_len - window + 1);
    status = table.CheckRows(b, 0, args.sink_rows);
    if (status.ok()) status = table.CheckRows(b, first, seq_lens[b]);
    if (!status.ok()) return status;
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

}  // namespace kvblocks::attention
