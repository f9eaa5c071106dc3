// What the host's backends do to the rows of sparse attention: keys of an indexer, and DeepSeek
// V4's compressor. In float64, rounded where it is stored.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"

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

// Choosing rows by an indexer: CPU_REFERENCE in float64, CPU in float32.

namespace {

// Rows that are scored together: read once for all heads of all tokens of an item.
constexpr int64_t kTile = 64;
constexpr int64_t kTokensPerItem = 8;

template <typename Real>
struct TopkScratch {
  std::vector<double> row;
  std::vector<Real> keys;     // [Di][kTile]
  std::vector<Real> queries;  // [tokens][Hi][Di]
  std::vector<Real> scores;   // [tokens][rows]
  std::vector<int32_t> order;
};

template <typename Real>
class TopkItem {
 public:
  // Tokens [first, last) of request b.
  TopkItem(const IndexTopkArgs& args, int64_t b, int64_t first, int64_t last,
           TopkScratch<Real>& scratch)
      : args_(args), b_(b), first_(first), last_(last), scratch_(scratch) {
    end_ = IndexAt(args.query_start_loc, b + 1);
    num_rows_ = NumRows(last - 1);
  }

  void Run() {
    LoadQueries();
    scratch_.scores.assign((last_ - first_) * num_rows_, 0);
    for (int64_t row = 0; row < num_rows_; row += kTile) ScoreTile(row);
    for (int64_t t = first_; t < last_; ++t) Choose(t);
  }

 private:
  int64_t heads() const { return args_.q.extent[1]; }
  int64_t dim() const { return args_.q.extent[2]; }
  // Rows that a token sees.
  int64_t NumRows(int64_t t) const {
    return (IndexAt(args_.seq_lens, b_) - (end_ - t) + 1) / args_.ratio;
  }
  int64_t SlotOf(int64_t row) const {
    const int64_t block_size = args_.cache.block_size();
    int32_t block;
    std::memcpy(&block, args_.block_table.At(b_, row / block_size), sizeof(block));
    return block * block_size + row % block_size;
  }

  void LoadQueries() {
    scratch_.row.resize(dim());
    scratch_.queries.resize((last_ - first_) * heads() * dim());
    Real* to = scratch_.queries.data();
    for (int64_t t = first_; t < last_; ++t) {
      for (int64_t h = 0; h < heads(); ++h, to += dim()) {
        LoadElements(args_.q.dtype, args_.q.At(t, h), args_.q.stride[2], dim(),
                     scratch_.row.data());
        std::copy(scratch_.row.begin(), scratch_.row.end(), to);
      }
    }
  }

  void ScoreTile(int64_t first_row) {
    const int64_t count = std::min(kTile, num_rows_ - first_row);
    scratch_.keys.resize(dim() * kTile);
    for (int64_t r = 0; r < count; ++r) {
      ReadIndexRow(args_.cache, SlotOf(first_row + r), dim(), scratch_.row.data());
      for (int64_t d = 0; d < dim(); ++d) {
        scratch_.keys[d * kTile + r] = static_cast<Real>(scratch_.row[d]);
      }
    }
    const Real* query = scratch_.queries.data();
    for (int64_t t = first_; t < last_; ++t) {
      Real* const scores = &scratch_.scores[(t - first_) * num_rows_ + first_row];
      for (int64_t h = 0; h < heads(); ++h, query += dim()) {
        if (NumRows(t) <= first_row) continue;
        Real products[kTile] = {};
        for (int64_t d = 0; d < dim(); ++d) {
          const Real* const keys = &scratch_.keys[d * kTile];
          for (int64_t r = 0; r < kTile; ++r) products[r] += query[d] * keys[r];
        }
        float weight;
        std::memcpy(&weight, args_.weights.At(t, h), sizeof(weight));
        for (int64_t r = 0; r < count; ++r) {
          // A NaN stays one, which max would not keep.
          const Real positive = products[r] < 0 ? 0 : products[r];
          scores[r] += static_cast<Real>(weight) * positive;
        }
      }
    }
  }

  void Choose(int64_t t) {
    const int64_t num_rows = NumRows(t), width = args_.indices.extent[1];
    const int64_t chosen = std::min(num_rows, width);
    Real* const scores = num_rows == 0 ? nullptr : &scratch_.scores[(t - first_) * num_rows_];
    std::vector<int32_t>& order = scratch_.order;
    order.resize(num_rows);
    for (int64_t row = 0; row < num_rows; ++row) {
      order[row] = static_cast<int32_t>(row);
      if (std::isnan(scores[row])) scores[row] = -std::numeric_limits<Real>::infinity();
    }
    if (chosen < num_rows) {
      std::nth_element(order.begin(), order.begin() + chosen, order.end(),
                       [&](int32_t a, int32_t b) {
                         return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                       });
      std::sort(order.begin(), order.begin() + chosen);
    }
    for (int64_t i = 0; i < width; ++i) {
      int32_t index = -1;
      if (i < chosen) {
        index = args_.as_slots ? static_cast<int32_t>(SlotOf(order[i])) : order[i];
      }
      std::memcpy(args_.indices.At(t, i), &index, sizeof(index));
    }
    const auto length = static_cast<int32_t>(chosen);
    std::memcpy(args_.lens.At(t), &length, sizeof(length));
  }

  const IndexTopkArgs& args_;
  int64_t b_, first_, last_, end_, num_rows_;
  TopkScratch<Real>& scratch_;
};

template <typename Real>
void RunTopk(const Checked<IndexTopkArgs>& call) {
  const IndexTopkArgs& args = call.args();
  const int64_t num_tokens = args.q.extent[0], num_requests = args.seq_lens.extent[0];
  // Items are runs of tokens; one that holds tokens of two requests is done in two parts.
  ParallelFor(call.context().threads, CeilDiv(num_tokens, kTokensPerItem), [&](int64_t item, int) {
    thread_local TopkScratch<Real> scratch;
    const int64_t last = std::min((item + 1) * kTokensPerItem, num_tokens);
    int64_t b = 0;
    for (int64_t t = item * kTokensPerItem; t < last;) {
      while (b + 1 < num_requests && IndexAt(args.query_start_loc, b + 1) <= t) ++b;
      const int64_t end = std::min(last, IndexAt(args.query_start_loc, b + 1));
      TopkItem<Real>(args, b, t, end, scratch).Run();
      t = end;
    }
  });
}

}  // namespace

absl::Status HostOps::Run(const Checked<IndexTopkArgs>& call) const {
  if (InFloat64(call.args().q, call.args().cache.rows)) {
    RunTopk<double>(call);
  } else {
    RunTopk<float>(call);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
