
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kTokensPerItem = 64;

// Calls work(first, last) for runs of tokens.
template <typename Work>
void ForTokens(const ExecContext& context, int64_t num_tokens, Work work) {
  ParallelFor(context.threads, CeilDiv(num_tokens, kTokensPerItem), [&](int64_t item, int) {
    work(item * kTokensPerItem, std::min((item + 1) * kTokensPerItem, num_tokens));
  });
}

void LoadHead(const ConstTensorView& view, int64_t t, int64_t head, double* out) {
  LoadElements(view.dtype, view.At(t, head), view.stride[2], view.extent[2], out);
}

// Columns [first, D) of a head, bits if the types agree. The views may be the same.
void CopyColumns(const ConstTensorView& from, const TensorView& to, int64_t t, int64_t head,
                 int64_t first) {
  const int64_t bytes = ElementBytes(to.dtype);
  for (int64_t d = first; d < to.extent[2]; ++d) {
    if (from.dtype == to.dtype) {
      std::memmove(to.At(t, head, d), from.At(t, head, d), bytes);
    } else {
      StoreElement(to.dtype, LoadElement(from.dtype, from.At(t, head, d)), to.At(t, head, d));
    }
  }
}

void StoreIndex(const TensorView& imp, int64_t r, int64_t t) {
  const int32_t index = static_cast<int32_t>(t);
  std::memcpy(imp.At(r), &index, sizeof(index));
}

}  // namespace

absl::Status HostOps::Run(const Checked<SelectHkvdArgs>& call) const {
  const ExecContext& context = call.context();
  const SelectHkvdArgs& args = call.args();
  const int64_t n = args.v_new.extent[0], num_heads = args.v_new.extent[1];
  const int64_t dim = args.v_new.extent[2];
  if (n == 0) return absl::OkStatus();
  const int64_t num_prefix = n - args.suffix_len;

  std::vector<double> diffs(num_prefix);
  std::atomic<bool> saw_nan = false;
  ForTokens(context, num_prefix, [&](int64_t first, int64_t last) {
    std::vector<double> now(dim), then(dim);
    for (int64_t t = first; t < last; ++t) {
      double sum = 0;
      for (int64_t head = 0; head < num_heads; ++head) {
        LoadHead(args.v_new, t, head, now.data());
        LoadHead(args.v_old, t, head, then.data());
        for (int64_t d = 0; d < dim; ++d) sum += (now[d] - then[d]) * (now[d] - then[d]);
      }
      if (std::isnan(sum)) {
        sum = std::numeric_limits<double>::infinity();
        saw_nan = true;
      }
      diffs[t] = sum;
    }
  });
  if (saw_nan) Flag(context, kNonFiniteInput);

  const int64_t k = HkvdCount(n, args.suffix_len, args.ratio);
  std::vector<int32_t> order(num_prefix);
  std::iota(order.begin(), order.end(), 0);
  std::nth_element(order.begin(), order.begin() + k, order.end(), [&](int32_t a, int32_t b) {
    return diffs[a] != diffs[b] ? diffs[a] > diffs[b] : a < b;
  });
  std::sort(order.begin(), order.begin() + k);
  for (int64_t r = 0; r < k; ++r) StoreIndex(args.imp, r, order[r]);
  for (int64_t s = 0; s < args.suffix_len; ++s) StoreIndex(args.imp, k + s, num_prefix + s);
  if (!args.diffs.absent()) {
    for (int64_t t = 0; t < num_prefix; ++t) {
      StoreElement(args.diffs.dtype, diffs[t], args.diffs.At(t));
    }
  }
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<FuseKvArgs>& call) const {
  const ExecContext& context = call.context();
  const FuseKvArgs& args = call.args();
  ForTokens(context, args.imp.extent[0], [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const int64_t t = IndexAt(args.imp, r);
      for (const auto& [from, to] :
           {std::pair(args.k_new, args.k_old), std::pair(args.v_new, args.v_old)}) {
        const int64_t bytes = ElementBytes(to.dtype);
        for (int64_t head = 0; head < to.extent[1]; ++head) {
          CopyElements(bytes, from.At(r, head), from.stride[2] * bytes, to.At(t, head),
                       to.stride[2] * bytes, to.extent[2]);
        }
      }
    }
  });
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<GatherRowsArgs>& call) const {
  const ExecContext& context = call.context();
  const GatherRowsArgs& args = call.args();
  const int64_t bytes = ElementBytes(args.in.dtype);
  const int last = args.in.rank - 1;
  const int64_t heads = last == 2 ? args.in.extent[1] : 1;
  const int64_t dim = last == 0 ? 1 : args.in.extent[last];
  // Of dimension `d`, in bytes.
  const auto stride = [&](const auto& view, int d) {
    return d > last ? 0 : view.stride[d] * bytes;
  };
  ForTokens(context, args.index.extent[0], [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) {
      const std::byte* from = args.in.At(IndexAt(args.index, r));
      std::byte* to = args.out.At(r);
      for (int64_t head = 0; head < heads; ++head) {
        CopyElements(bytes, from + head * stride(args.in, 1), stride(args.in, last),
                     to + head * stride(args.out, 1), stride(args.out, last), dim);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<RotateKeysArgs>& call) const {
  const ExecContext& context = call.context();
  const RotateKeysArgs& args = call.args();
  const int64_t num_tokens = args.in.extent[0], num_heads = args.in.extent[1];
  const int64_t dim = args.in.extent[2];
  const int64_t columns = args.rotary_dim == 0 ? dim : args.rotary_dim;
  const int64_t num_pairs = columns / 2;
  const bool halves = args.pairs == RotaryPairs::kHalves;

  std::vector<double> frequency(num_pairs);
  for (int64_t i = 0; i < num_pairs; ++i) {
    frequency[i] =
        std::pow(args.theta, -2.0 * static_cast<double>(i) / static_cast<double>(columns));
  }
  ForTokens(context, num_tokens, [&](int64_t first, int64_t last) {
    std::vector<double> row(dim), cosine(num_pairs), sine(num_pairs);
    std::vector<std::byte> codes(dim * ElementBytes(args.out.dtype));
    for (int64_t t = first; t < last; ++t) {
      // Differences of positions may not fit into int64.
      double by = static_cast<double>(IndexAt(args.positions, t));
      if (!args.from_positions.absent()) {
        by -= static_cast<double>(IndexAt(args.from_positions, t));
      }
      if (by != 0) {
        for (int64_t i = 0; i < num_pairs; ++i) {
          const double angle = by * frequency[i];
          cosine[i] = std::cos(angle);
          sine[i] = std::sin(angle);
        }
      }
      for (int64_t head = 0; head < num_heads; ++head) {
        CopyColumns(args.in, args.out, t, head, by == 0 ? 0 : columns);
        if (by == 0) continue;
        LoadElements(args.in.dtype, args.in.At(t, head), args.in.stride[2], columns, row.data());
        for (int64_t i = 0; i < num_pairs; ++i) {
          double& x = row[halves ? i : 2 * i];
          double& y = row[halves ? i + num_pairs : 2 * i + 1];
          const double rotated = x * cosine[i] - y * sine[i];
          y = x * sine[i] + y * cosine[i];
          x = rotated;
        }
        StoreElements(args.out.dtype, row.data(), columns, codes.data());
        const int64_t bytes = ElementBytes(args.out.dtype);
        CopyElements(bytes, codes.data(), bytes, args.out.At(t, head), args.out.stride[2] * bytes,
                     columns);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
