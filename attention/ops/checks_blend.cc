// Checks of the operations of CacheBlend.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kvblocks/attention/ops/batch_checks.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention {

absl::Status Check(const ExecContext& context, const SelectHkvdArgs& args) {
  ArgChecker check(context, "SelectHkvd");
  Dim tokens{"n"}, heads{"Hkv"}, value{"D"}, selected{"k + suffix_len"};
  check.In("v_new", args.v_new, kComputeTypes, {&tokens, &heads, &value});
  check.In("v_old", args.v_old, kComputeTypes, {&tokens, &heads, &value});
  check.Out("imp", args.imp, DType::kI32, {&selected});
  if (!check.ok()) return check.status();
  if (!(args.ratio >= 0 && args.ratio <= 1)) {
    check.Invalid("ratio is ", args.ratio, "; 0 to 1");
  }
  check.AtLeast("suffix_len", args.suffix_len, 1);
  if (!check.ok() || tokens.size == 0) return check.Finish();
  if (args.suffix_len > tokens.size) {
    check.Invalid("suffix_len is ", args.suffix_len, "; at most n = ", tokens.size);
    return check.status();
  }
  Dim prefix{"n - suffix_len", tokens.size - args.suffix_len, "v_new"};
  check.OutIf("diffs", args.diffs, DType::kF32, {&prefix});
  const int64_t k =
      static_cast<int64_t>(std::floor(args.ratio * static_cast<double>(prefix.size) + 1e-6));
  if (check.ok() && selected.size < k + args.suffix_len) {
    check.TooSmall("imp has ", selected.size, " elements; ", k, " selected and the suffix of ",
                   args.suffix_len, " take ", k + args.suffix_len);
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const FuseKvArgs& args) {
  ArgChecker check(context, "FuseKv");
  Dim tokens{"n"}, rows{"M"}, heads{"Hkv"}, key{"D"}, value{"Dv"};
  check.In("imp", args.imp, DType::kI32, {&rows});
  check.Out("k_old", args.k_old, kComputeTypes, {&tokens, &heads, &key});
  check.Out("v_old", args.v_old, kComputeTypes, {&tokens, &heads, &value});
  if (!check.ok()) return check.status();
  check.In("k_new", args.k_new, args.k_old.dtype, {&rows, &heads, &key});
  check.In("v_new", args.v_new, args.v_old.dtype, {&rows, &heads, &value});
  if (!check.ok()) return check.status();
  const HostArray<int32_t> imp(args.imp);
  if (!imp.readable()) return check.Finish();
  const auto twice = [&](int32_t row) {
    check.Invalid("imp has ", row, " twice; rows are replaced once");
    return check.status();
  };
  for (int64_t r = 0; r < imp.size(); ++r) {
    if (imp[r] < 0 || imp[r] >= tokens.size) {
      check.OutOfRange("imp[", r, "] is ", imp[r], "; 0 to below n = ", tokens.size);
      return check.status();
    }
    // Found before anything is copied: a broadcast row may be given any number of times.
    if (r > 0 && imp[r] == imp[r - 1]) return twice(imp[r]);
  }
  std::vector<int32_t> sorted(imp.size());
  for (int64_t r = 0; r < imp.size(); ++r) sorted[r] = imp[r];
  std::sort(sorted.begin(), sorted.end());
  const auto same = std::adjacent_find(sorted.begin(), sorted.end());
  if (same != sorted.end()) return twice(*same);
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const GatherRowsArgs& args) {
  ArgChecker check(context, "GatherRows");
  Dim rows{"M"};
  check.View("in", args.in, DTypeSet::All());
  check.In("index", args.index, DType::kI32, {&rows});
  if (!check.ok() || !check.View("out", args.out, args.in.dtype)) return check.status();
  check.Reads("in", args.in);
  check.Writes("out", args.out);
  if (args.in.rank < 1 || args.in.rank > 3 || args.out.rank != args.in.rank) {
    check.Invalid("in is ", args.in.DebugString(), ", out ", args.out.DebugString(),
                  "; both of rank 1, 2 or 3");
    return check.status();
  }
  if (args.out.extent[0] != rows.size) {
    check.Invalid("out has ", args.out.extent[0], " rows; index has M = ", rows.size);
  }
  for (int dim = 1; dim < args.in.rank; ++dim) {
    if (args.out.extent[dim] == args.in.extent[dim]) continue;
    check.Invalid("out is ", args.out.DebugString(), "; its rows must be those of in, ",
                  args.in.DebugString());
  }
  const HostArray<int32_t> index(args.index);
  if (!check.ok() || !index.readable()) return check.Finish();
  for (int64_t r = 0; r < index.size(); ++r) {
    if (index[r] >= 0 && index[r] < args.in.extent[0]) continue;
    check.OutOfRange("index[", r, "] is ", index[r], "; 0 to below n = ", args.in.extent[0]);
    return check.status();
  }
  return check.Finish();
}

absl::Status Check(const ExecContext& context, const RotateKeysArgs& args) {
  ArgChecker check(context, "RotateKeys");
  Dim tokens{"n"}, heads{"Hkv"}, key{"D"};
  constexpr DTypeSet kPositions = {DType::kI32, DType::kI64};
  check.In("in", args.in, kComputeTypes, {&tokens, &heads, &key});
  if (check.ok() && args.out.data == args.in.data && args.out.dtype == args.in.dtype &&
      args.out.stride == args.in.stride) {
    check.AllowOverlapOfLast();  // in place
  }
  check.In("positions", args.positions, kPositions, {&tokens});
  check.InIf("from_positions", args.from_positions, kPositions, {&tokens});
  check.Out("out", args.out, kComputeTypes, {&tokens, &heads, &key});
  check.Positive("theta", args.theta);
  if (static_cast<int>(args.pairs) > static_cast<int>(RotaryPairs::kInterleaved)) {
    check.Invalid("pairs is number ", static_cast<int>(args.pairs));
  }
  if (!check.ok()) return check.status();
  const int64_t columns = args.rotary_dim == 0 ? key.size : args.rotary_dim;
  if (columns < 0 || columns > key.size || columns % 2 != 0) {
    check.Invalid("rotary_dim is ", args.rotary_dim, " of D = ", key.size,
                  " columns; even, at most D, or 0 for an even D");
  }
  check.Aligned("in", args.in);
  check.Aligned("out", args.out);
  return check.Finish();
}

}  // namespace kvblocks::attention
