#include "kvblocks/attention_metadata.h"

#include <algorithm>

#include "attention/metadata/host_index_checks.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr char kGather[] = "GatherInputTokens";

// Stores into i32 or i64.
void Store(const TensorView& tensor, int64_t index, int32_t value) {
  if (tensor.dtype == DType::kI64) {
    tensor.as<int64_t>()[index] = value;
  } else {
    tensor.as<int32_t>()[index] = value;
  }
}

// A batch row as the host reads it.
struct InputRow {
  int64_t begin, end;       // its tokens
  int64_t computed;         // position of the first
  int64_t num_logits;       // rows that it is sampled behind
  int64_t last;             // its row in the last step, or -1
  int64_t first_of_device;  // position from which on `sampled` and `drafts` are read
  int64_t table_row;
};

InputRow RowOf(const InputTokensArgs& args, int64_t b) {
  InputRow row;
  row.begin = args.query_start_loc.as<int32_t>()[b];
  row.end = args.query_start_loc.as<int32_t>()[b + 1];
  row.computed = args.num_computed.as<int32_t>()[b];
  row.num_logits = row.end > row.begin ? 1 : 0;
  if (!args.logits_start_loc.absent()) {
    const auto* starts = args.logits_start_loc.as<int32_t>();
    row.num_logits = int64_t{starts[b + 1]} - starts[b];
  }
  row.last = args.last_rows.absent() ? -1 : args.last_rows.as<int32_t>()[b];
  row.first_of_device = row.computed + (row.end - row.begin) - row.num_logits;
  row.table_row = args.request_rows.as<int32_t>()[b];
  return row;
}

absl::Status CheckRow(const InputTokensArgs& args, int64_t b) {
  const InputRow row = RowOf(args, b);
  const int64_t count = row.end - row.begin;
  if (count == 0 && row.num_logits == 0) return absl::OkStatus();
  if (row.table_row < 0 || row.table_row >= args.token_ids.extent[0]) {
    return OutOfRange(kGather, ": request_rows[", b, "] is ", row.table_row, "; token_ids has ",
                      args.token_ids.extent[0], " rows");
  }
  if (row.computed < 0 || row.computed > args.token_ids.extent[1] - count) {
    return OutOfRange(kGather, ": request ", b, ": ", count, " tokens from position ", row.computed,
                      "; rows of token_ids have ", args.token_ids.extent[1]);
  }
  if (row.num_logits > count) {
    return InvalidArgument(kGather, ": request ", b, " is sampled behind ", row.num_logits,
                           " rows of its ", count, "; logits_start_loc may count at most as many");
  }
  if (row.last < 0 || row.num_logits == 0) {
    if (row.last < -1) {
      return OutOfRange(kGather, ": last_rows[", b, "] is ", row.last, "; -1 for none, or a row");
    }
    return absl::OkStatus();
  }
  const int64_t last_rows = args.drafts.absent()
                                ? args.sampled.extent[0]
                                : std::min(args.sampled.extent[0], args.drafts.extent[0]);
  if (row.last >= last_rows) {
    return OutOfRange(kGather, ": last_rows[", b, "] is ", row.last, "; the last step had ",
                      last_rows, " rows");
  }
  if (!args.drafts.absent() && row.num_logits - 1 > args.drafts.extent[1]) {
    return InvalidArgument(kGather, ": request ", b, " has ", row.num_logits - 1,
                           " drafts; rows of drafts have ", args.drafts.extent[1]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTensors(const ExecContext& context, const InputTokensArgs& args,
                          int64_t num_tokens, int64_t num_logits) {
  IndexChecker check(context, kGather);
  check.Read("query_start_loc", args.query_start_loc, 1, 1);
  if (!check.ok()) return check.status();
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  if (args.last_rows.absent() != args.sampled.absent() ||
      (args.last_rows.absent() && !args.drafts.absent())) {
    check.Invalid("last_rows is ", args.last_rows.DebugString(), ", sampled ",
                  args.sampled.DebugString(), " and drafts ", args.drafts.DebugString(),
                  "; the first two go together, and drafts with them");
  }
  // A matrix with rows of any number of columns.
  const auto matrix = [&](const char* name, const ConstTensorView& tensor, int64_t least_columns) {
    check.Read(name, tensor, 2, 0);
    if (check.ok() && tensor.extent[1] < least_columns) {
      check.Invalid(name, " is ", tensor.DebugString(), "; it must have ", least_columns,
                    " column or more");
    }
  };
  const auto ids = [&](const char* name, const TensorView& tensor) {
    check.Write(name, tensor, 1, num_tokens, -1,
                tensor.dtype == DType::kI64 ? DType::kI64 : DType::kI32);
  };
  check.Read("request_rows", args.request_rows, 1, num_reqs);
  check.Read("num_computed", args.num_computed, 1, num_reqs);
  matrix("token_ids", args.token_ids, 0);
  if (!args.logits_start_loc.absent()) {
    check.Read("logits_start_loc", args.logits_start_loc, 1, num_reqs + 1);
  }
  if (!args.last_rows.absent()) {
    check.Read("last_rows", args.last_rows, 1, num_reqs);
    matrix("sampled", args.sampled, 1);
    if (!args.drafts.absent()) matrix("drafts", args.drafts, 0);
  }
  ids("input_ids", args.input_ids);
  if (!args.positions.absent()) ids("positions", args.positions);
  if (!args.logits_indices.absent())
    check.Write("logits_indices", args.logits_indices, 1, num_logits);
  return check.Finish();
}

absl::Status GatherInputTokens(const InputTokensArgs& args) {
  absl::Status status = CheckTensors(ExecContext(), args, 0, 0);
  if (!status.ok()) return status;
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t num_tokens,
                            CheckQueryStartLoc(kGather, args.query_start_loc));
  const int64_t num_reqs = args.query_start_loc.extent[0] - 1;
  if (!args.logits_start_loc.absent()) {
    const auto* starts = args.logits_start_loc.as<int32_t>();
    for (int64_t b = 0; b <= num_reqs; ++b) {
      if (b == 0 ? starts[0] == 0 : starts[b] >= starts[b - 1]) continue;
      return InvalidArgument(kGather, ": logits_start_loc[", b, "] is ", starts[b],
                             "; it must begin with 0 and not decrease");
    }
  }
  int64_t num_logits = 0;
  for (int64_t b = 0; b < num_reqs; ++b) {
    status = CheckRow(args, b);
    if (!status.ok()) return status;
    const InputRow row = RowOf(args, b);
    num_logits += row.num_logits;
    if (args.logits_start_loc.absent() && row.begin == row.end && row.end < num_tokens) {
      return InvalidArgument(kGather, ": request ", b,
                             " has no tokens and others behind it have; give logits_start_loc");
    }
  }
  status = CheckTensors(ExecContext(), args, num_tokens, num_logits);
  if (!status.ok()) return status;

  const bool wants_positions = !args.positions.absent();
  const bool wants_logits = !args.logits_indices.absent();
  auto* logits = args.logits_indices.as<int32_t>();
  int32_t last_logits = 0;
  for (int64_t b = 0; b < num_reqs; ++b) {
    const InputRow row = RowOf(args, b);
    for (int64_t t = row.begin; t < row.end; ++t) {
      const int64_t p = row.computed + t - row.begin;
      const int64_t k = p - row.first_of_device;  // 0: sampled, then drafts
      int32_t id = args.token_ids.as<int32_t>()[row.table_row * args.token_ids.extent[1] + p];
      if (row.last >= 0 && k == 0)
        id = args.sampled.as<int32_t>()[row.last * args.sampled.extent[1]];
      if (row.last >= 0 && k > 0 && !args.drafts.absent()) {
        id = args.drafts.as<int32_t>()[row.last * args.drafts.extent[1] + k - 1];
      }
      Store(args.input_ids, t, id);
      if (wants_positions) Store(args.positions, t, static_cast<int32_t>(p));
    }
    for (int64_t i = row.end - row.num_logits; i < row.end && wants_logits; ++i) {
      *logits++ = last_logits = static_cast<int32_t>(i);
    }
  }
  for (int64_t t = num_tokens; t < args.input_ids.extent[0]; ++t) Store(args.input_ids, t, 0);
  if (wants_positions) {
    for (int64_t t = num_tokens; t < args.positions.extent[0]; ++t) Store(args.positions, t, 0);
  }
  if (wants_logits) {
    std::fill_n(logits, args.logits_indices.extent[0] - num_logits, last_logits);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
