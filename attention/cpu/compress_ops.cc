// What the host's backends do to the rows of sparse attention: keys of an indexer, and DeepSeek V4's
// compressor. In float64, rounded where it is stored.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kvblocks/attention/cache/element_rows.h"
#include "kvblocks/attention/cpu/host_ops.h"
#include "kvblocks/attention/cpu/host_scalars.h"
#include "kvblocks/attention/cpu/thread_pool.h"
#include "kvblocks/attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

void LoadRow(const ConstTensorView& rows, int64_t row, double* out) {
  LoadElements(rows.dtype, rows.At(row), rows.stride[1], rows.extent[1], out);
}

// Where a compressor finds the states of a request.
struct StateRows {
  const CompressTokensArgs& args;
  int64_t request;

  const std::byte* Row(int64_t position) const {
    const int64_t block_size = args.states.extent[1];
    int32_t block;
    std::memcpy(&block, args.block_table.At(request, position / block_size), sizeof(block));
    return args.states.At(block, position % block_size);
  }
};

// What CompressToken needs besides its arguments.
struct CompressScratch {
  std::vector<double> values, scores;  // [C * ratio, D]
  std::vector<double> row;             // [D]
};

// The row that the token at `position` completes.
void CompressToken(const StateRows& states, int64_t position, int64_t token,
                   CompressScratch& scratch) {
  const CompressTokensArgs& args = states.args;
  const int64_t dim = args.out.extent[1], parts = args.overlap ? 2 : 1;
  const int64_t first = position + 1 - parts * args.ratio;
  const int64_t begin = std::max<int64_t>(first, 0), count = position + 1 - begin;
  const int64_t step = args.states.stride[2];
  const int64_t bytes = step * static_cast<int64_t>(sizeof(float));
  scratch.values.resize(count * dim), scratch.scores.resize(count * dim);
  for (int64_t i = 0; i < count; ++i) {
    // With overlap the older tokens are the first half of the list.
    const int64_t half = begin + i - first >= args.ratio ? parts - 1 : 0;
    const std::byte* row = states.Row(begin + i) + half * dim * bytes;
    LoadElements(DType::kF32, row, step, dim, &scratch.values[i * dim]);
    LoadElements(DType::kF32, row + parts * dim * bytes, step, dim, &scratch.scores[i * dim]);
  }
  scratch.row.assign(dim, 0);
  double squares = 0;
  for (int64_t d = 0; d < dim; ++d) {
    double most = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < count; ++i) most = std::max(most, scratch.scores[i * dim + d]);
    double sum = 0, weighted = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double weight = std::exp(scratch.scores[i * dim + d] - most);
      sum += weight;
      weighted += weight * scratch.values[i * dim + d];
    }
    scratch.row[d] = weighted / sum;
    squares += scratch.row[d] * scratch.row[d];
  }
  if (!args.norm_weight.absent()) {
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(dim) + static_cast<double>(args.norm_eps));
    for (int64_t d = 0; d < dim; ++d) {
      scratch.row[d] *= factor * LoadElement(DType::kF32, args.norm_weight.At(d));
    }
  }
  if (!args.cos_sin.absent()) {
    const int64_t rotary = args.cos_sin.extent[1], at = position + 1 - args.ratio;
    for (int64_t i = 0; i < rotary / 2; ++i) {
      const double cosine = LoadElement(DType::kF32, args.cos_sin.At(at, i));
      const double sine = LoadElement(DType::kF32, args.cos_sin.At(at, rotary / 2 + i));
      double& x = scratch.row[dim - rotary + 2 * i];
      double& y = scratch.row[dim - rotary + 2 * i + 1];
      const double rotated = x * cosine - y * sine;
      y = x * sine + y * cosine;
      x = rotated;
    }
  }
  for (int64_t d = 0; d < dim; ++d) {
    StoreElement(args.out.dtype, scratch.row[d], args.out.At(token, d));
  }
}

}  // namespace

absl::Status HostOps::Run(const Checked<CacheIndexKeysArgs>& call) const {
  const CacheIndexKeysArgs& args = call.args();
  const int64_t dim = args.k.extent[1];
  ParallelFor(call.context().threads, args.slot_mapping.extent[0], [&](int64_t t, int) {
    const int64_t slot = IndexAt(args.slot_mapping, t);
    if (slot < 0) return;
    thread_local std::vector<double> row;
    row.resize(dim);
    LoadRow(args.k, t, row.data());
    WriteIndexRow(args.cache, slot, dim, args.power_of_two_scales, row.data());
  });
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<CompressTokensArgs>& call) const {
  const CompressTokensArgs& args = call.args();
  ThreadPool* const threads = call.context().threads;
  const int64_t num_requests = args.seq_lens.extent[0], width = args.kv.extent[1];
  const int64_t block_size = args.states.extent[1];
  // Of the token in its request.
  const auto position_of = [&](int64_t b, int64_t t) {
    return IndexAt(args.seq_lens, b) - (IndexAt(args.query_start_loc, b + 1) - t);
  };
  ParallelFor(threads, num_requests, [&](int64_t b, int) {
    thread_local std::vector<double> values, scores;
    values.resize(width), scores.resize(width);
    const int64_t end = std::min(IndexAt(args.query_start_loc, b + 1), args.slot_mapping.extent[0]);
    for (int64_t t = IndexAt(args.query_start_loc, b); t < end; ++t) {
      const int64_t slot = IndexAt(args.slot_mapping, t);
      if (slot < 0) continue;
      LoadRow(args.kv, t, values.data());
      LoadRow(args.score, t, scores.data());
      const int64_t bias_row = position_of(b, t) % args.ratio;
      for (int64_t d = 0; d < width; ++d) {
        if (!args.bias.absent()) {
          scores[d] += LoadElement(DType::kF32, args.bias.At(bias_row, d));
        }
        std::byte* const to = args.states.At(slot / block_size, slot % block_size, d);
        StoreElement(DType::kF32, values[d], to);
        StoreElement(DType::kF32, scores[d],
                     to + width * args.states.stride[2] * static_cast<int64_t>(sizeof(float)));
      }
    }
  });
  // All are stored: a request may find tokens of this step.
  ParallelFor(threads, num_requests, [&](int64_t b, int) {
    thread_local CompressScratch scratch;
    for (int64_t t = IndexAt(args.query_start_loc, b); t < IndexAt(args.query_start_loc, b + 1);
         ++t) {
      const int64_t position = position_of(b, t);
      if ((position + 1) % args.ratio == 0) CompressToken({args, b}, position, t, scratch);
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
