// CPU_REFERENCE's engine, in float64: each (row, head) in two passes, the exact maximum first, then
// exponentials and the value sum in key order, piece by piece. Rows share nothing but the loaded
// keys.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "attention/cache/cache_rows.h"
#include "attention/cache/element_rows.h"
#include "attention/cpu/attend_engine.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/visibility.h"
#include "attention/tensor/small_floats.h"

namespace kvblocks::attention {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Rows of a tile share each loaded key; their scores are kept, so long requests get small tiles.
constexpr int64_t kMaxTileRows = 64;
constexpr int64_t kMaxTileScores = int64_t{1} << 20;

double Dot(const double* a, const double* b, int64_t n) {
  double sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void LoadRow(const ConstTensorView& view, int64_t row, int64_t head, double* out) {
  LoadElements(view.dtype, view.At(row, head), view.stride[2], view.extent[2], out);
}

void Multiply(double* row, int64_t count, double scale) {
  for (int64_t d = 0; scale != 1 && d < count; ++d) row[d] *= scale;
}

// Keys and values by position in their request, dequantised. Codes of 8-bit caches are multiplied
// by their scales here. No allocation per row.
class KeyRows {
 public:
  virtual ~KeyRows() = default;
  virtual void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const = 0;
  virtual void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const = 0;
};

class BatchRows final : public KeyRows {
 public:
  explicit BatchRows(const DenseBatch& batch)
      : batch_(batch), block_size_(batch.cache.block_size()) {}

  void Key(int64_t request, int64_t kv_head, int64_t j, double* out) const override {
    ReadKeyRow(batch_.cache, SlotOf(request, j), kv_head, out);
    Multiply(out, batch_.cache.key_dim(), ScaleAt(batch_.params.scales.k, request, kv_head));
  }
  void Value(int64_t request, int64_t kv_head, int64_t j, double* out) const override {
    ReadValueRow(batch_.cache, SlotOf(request, j), kv_head, out);
    Multiply(out, batch_.cache.value_dim(), ScaleAt(batch_.params.scales.v, request, kv_head));
  }

 private:
  int64_t SlotOf(int64_t request, int64_t j) const {
    if (batch_.block_table.absent()) return batch_.first_slot[request] + j;
    const int64_t table_row = j < batch_.shared_prefix ? 0 : request;
    int32_t block;
    std::memcpy(&block, batch_.block_table.At(table_row, j / block_size_), sizeof(block));
    return block * block_size_ + j % block_size_;
  }

  const DenseBatch& batch_;
  const int64_t block_size_;
};

// Key j of query n is the j-th of its lists, taken one after another.
class ListedRows final : public KeyRows {
 public:
  explicit ListedRows(const std::vector<KeyLists>& lists) : lists_(lists) {}

  void Key(int64_t n, int64_t, int64_t j, double* out) const override {
    const auto [list, slot] = Find(n, j);
    ReadKeyRow(list.cache, slot, 0, out);
    Multiply(out, list.cache.key_dim(), list.code_scale);
  }
  void Value(int64_t n, int64_t, int64_t j, double* out) const override {
    const auto [list, slot] = Find(n, j);
    ReadValueRow(list.cache, slot, 0, out);
    Multiply(out, list.cache.value_dim(), list.code_scale);
  }
  int64_t Count(int64_t n) const {
    int64_t count = 0;
    for (const KeyLists& list : lists_) count += list.starts[n + 1] - list.starts[n];
    return count;
  }

 private:
  std::pair<const KeyLists&, int64_t> Find(int64_t n, int64_t j) const {
    size_t i = 0;
    for (; j >= lists_[i].starts[n + 1] - lists_[i].starts[n]; ++i) {
      j -= lists_[i].starts[n + 1] - lists_[i].starts[n];
    }
    return {lists_[i], lists_[i].slots[lists_[i].starts[n] + j]};
  }

  const std::vector<KeyLists>& lists_;
};

struct AttendRequest {
  int64_t index = 0;      // in the batch: of its block table, scales and mask
  int64_t first_row = 0;  // of its queries
  int64_t q_len = 0, kv_len = 0;
  Pieces pieces;
};

struct AttendBatch {
  int64_t num_heads = 0, num_kv_heads = 1, key_dim = 0, value_dim = 0;
  std::vector<AttendRequest> requests;
  ConstTensorView query_positions;  // i32 [rows], or absent: kv_len - q_len + i
  const KeyRows* keys = nullptr;
  const AttnParams* params = nullptr;
};

// What a row saw of a piece of its keys: the largest score, the sum of e^(s - max), and the sum of
// e^(s - max) v, not divided. Nothing visible: -infinity, 0, zeros.
struct PieceState {
  double max = -kInfinity;
  double sum = 0;
  absl::Span<double> values;
};

// Rows [begin, end) of the (token, head of the group) pairs of a request and KV head.
struct Tile {
  const AttendRequest* request;
  int64_t mask_bits_before;
  int64_t kv_head;
  int64_t begin, end;
};

struct TileRow {
  int64_t row, head;
  Visibility::Row sees;
  double slope;
};

std::vector<Tile> CutIntoTiles(const AttendBatch& batch) {
  const int64_t group = batch.num_heads / batch.num_kv_heads;
  std::vector<Tile> tiles;
  int64_t mask_bits = 0;
  for (const AttendRequest& request : batch.requests) {
    const int64_t pairs = request.q_len * group;
    const int64_t pieces = std::max<int64_t>(2, request.pieces.size()) - 1;
    const int64_t held = std::max(request.kv_len, pieces * batch.value_dim);
    const int64_t rows =
        std::clamp(kMaxTileScores / std::max<int64_t>(1, held), int64_t{1}, kMaxTileRows);
    for (int64_t kv_head = 0; kv_head < batch.num_kv_heads; ++kv_head) {
      for (int64_t begin = 0; begin < pairs; begin += rows) {
        tiles.push_back({&request, mask_bits, kv_head, begin, std::min(begin + rows, pairs)});
      }
    }
    mask_bits += request.q_len * request.kv_len;
  }
  return tiles;
}

class TileRun {
 public:
  TileRun(const AttendBatch& batch, const Visibility& visibility, const Tile& tile)
      : batch_(batch), visibility_(visibility), tile_(tile) {
    const AttnParams& params = *batch.params;
    const AttendRequest& request = *tile.request;
    const int64_t group = batch.num_heads / batch.num_kv_heads;
    const Visibility::Request shape = {request.index, request.q_len, request.kv_len,
                                       tile.mask_bits_before};
    for (int64_t pair = tile.begin; pair < tile.end; ++pair) {
      const int64_t i = pair / group;
      TileRow row;
      row.row = request.first_row + i;
      row.head = tile.kv_head * group + pair % group;
      const int64_t p = batch.query_positions.absent() ? request.kv_len - request.q_len + i
                                                       : IndexAt(batch.query_positions, row.row);
      row.sees = visibility.RowOf(shape, i, p, row.head);
      row.slope = params.alibi_slopes.absent()
                      ? 0
                      : LoadElement(params.alibi_slopes.dtype, params.alibi_slopes.At(row.head));
      rows_.push_back(row);
    }
    queries_.resize(rows_.size() * batch.key_dim);
    key_or_value_.resize(std::max(batch.key_dim, batch.value_dim));
  }

  absl::Span<const TileRow> rows() const { return rows_; }
  double* query(size_t r) { return queries_.data() + r * batch_.key_dim; }

  // Fills states[r] for each row of the tile from keys [begin, end).
  void Piece(int64_t begin, int64_t end, absl::Span<PieceState> states) {
    int64_t lo = end, hi = begin;
    for (const TileRow& row : rows_) {
      lo = std::min(lo, std::max(begin, row.sees.lo));
      hi = std::max(hi, std::min(end, row.sees.hi));
    }
    if (lo >= hi) return;
    const int64_t num_keys = hi - lo;
    scores_.assign(rows_.size() * num_keys, -kInfinity);
    for (int64_t j = lo; j < hi; ++j) {
      bool loaded = false;
      for (size_t r = 0; r < rows_.size(); ++r) {
        const Visibility::Row& sees = rows_[r].sees;
        if (j < sees.lo || j >= sees.hi) continue;
        if (sees.needs_test && !visibility_.Visible(sees, j)) continue;
        if (!loaded) {
          batch_.keys->Key(tile_.request->index, tile_.kv_head, j, key_or_value_.data());
          loaded = true;
        }
        const double s = Score(r, j);
        scores_[r * num_keys + (j - lo)] = s;
        // A NaN becomes the maximum and stays it.
        if (s > states[r].max || std::isnan(s)) states[r].max = s;
      }
    }
    for (int64_t j = lo; j < hi; ++j) {
      bool loaded = false;
      for (size_t r = 0; r < rows_.size(); ++r) {
        const double s = scores_[r * num_keys + (j - lo)];
        if (s == -kInfinity) continue;
        if (!loaded) {
          batch_.keys->Value(tile_.request->index, tile_.kv_head, j, key_or_value_.data());
          loaded = true;
        }
        const double weight = std::exp(s - states[r].max);
        states[r].sum += weight;
        double* values = states[r].values.data();
        for (int64_t d = 0; d < batch_.value_dim; ++d) values[d] += weight * key_or_value_[d];
      }
    }
  }

 private:
  double Score(size_t r, int64_t j) {
    const AttnParams& params = *batch_.params;
    const Visibility::Row& sees = rows_[r].sees;
    double s = params.scale * Dot(query(r), key_or_value_.data(), batch_.key_dim);
    if (params.soft_cap > 0) s = params.soft_cap * std::tanh(s / params.soft_cap);
    if (rows_[r].slope != 0) s += rows_[r].slope * static_cast<double>(j - sees.p);
    if (sees.has_bias) s += visibility_.Bias(sees, j);
    return s;
  }

  const AttendBatch& batch_;
  const Visibility& visibility_;
  const Tile& tile_;
  std::vector<TileRow> rows_;
  std::vector<double> queries_, key_or_value_, scores_;
};

// Calls load_query(row, head, key_dim values) and finish(row, head, states of its pieces, in order)
// once for each row and head, from any thread.
void AttendRows(ThreadPool* threads, const AttendBatch& batch,
                absl::FunctionRef<void(int64_t row, int64_t head, double* out)> load_query,
                absl::FunctionRef<void(int64_t, int64_t, absl::Span<PieceState>)> finish) {
  const Visibility visibility(*batch.params, batch.num_heads, batch.num_kv_heads);
  const std::vector<Tile> tiles = CutIntoTiles(batch);
  ParallelFor(threads, static_cast<int64_t>(tiles.size()), [&](int64_t item, int) {
    const Tile& tile = tiles[item];
    TileRun run(batch, visibility, tile);
    const size_t num_rows = run.rows().size();
    for (size_t r = 0; r < num_rows; ++r) {
      load_query(run.rows()[r].row, run.rows()[r].head, run.query(r));
    }
    const Pieces& pieces = tile.request->pieces;
    const size_t num_pieces = std::max<size_t>(2, pieces.size()) - 1;  // without keys an empty one
    std::vector<double> values(num_pieces * num_rows * batch.value_dim);
    std::vector<PieceState> states(num_pieces * num_rows);
    for (size_t n = 0; n < states.size(); ++n) {
      states[n].values = absl::MakeSpan(values).subspan(n * batch.value_dim, batch.value_dim);
    }
    for (size_t piece = 0; piece + 1 < pieces.size(); ++piece) {
      run.Piece(pieces[piece], pieces[piece + 1],
                absl::MakeSpan(states).subspan(piece * num_rows, num_rows));
    }
    std::vector<PieceState> of_row(num_pieces);
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t piece = 0; piece < num_pieces; ++piece) {
        of_row[piece] = states[piece * num_rows + r];
      }
      finish(run.rows()[r].row, run.rows()[r].head, absl::MakeSpan(of_row));
    }
  });
}

// Merges the states into one whose values are divided by its sum; returns the log-sum-exp. The
// result is in pieces[0].values. A single piece is only divided.
double MergePieces(absl::Span<PieceState> pieces) {
  PieceState& result = pieces[0];
  if (pieces.size() > 1) {
    double max = -kInfinity;
    for (const PieceState& piece : pieces) {
      if (piece.max > max || std::isnan(piece.max)) max = piece.max;
    }
    double sum = 0;
    for (PieceState& piece : pieces) {
      if (piece.max == -kInfinity) continue;
      const double weight = std::exp(piece.max - max);
      sum += weight * piece.sum;
      for (double& value : piece.values) value *= weight;
    }
    for (size_t i = 1; i < pieces.size(); ++i) {
      for (size_t d = 0; d < result.values.size(); ++d) result.values[d] += pieces[i].values[d];
    }
    result.max = max;
    result.sum = sum;
  }
  if (result.max == -kInfinity) return -kInfinity;
  for (double& value : result.values) value /= result.sum;
  return result.max + std::log(result.sum);
}

// Applies the head's sink, divides by out_scale if it is set, rounds once.
void Write(const RowOutputs& outputs, int64_t row, int64_t head, absl::Span<double> values,
           double lse) {
  const bool has_sink = !outputs.sinks.absent();
  const double sink =
      has_sink ? LoadElement(outputs.sinks.dtype, outputs.sinks.At(head)) : -kInfinity;
  const double factor = has_sink && lse != -kInfinity ? 1 + std::exp(sink - lse) : 1;
  for (size_t d = 0; d < values.size(); ++d) {
    // Of an infinite sink not even a NaN is left, nor the sign of a zero.
    double value = sink == kInfinity ? 0 : values[d] / factor;
    if (outputs.out_scale > 0) value /= outputs.out_scale;
    StoreElement(outputs.out.dtype, value, outputs.out.At(row, head, d));
  }
  if (!outputs.lse.absent()) {
    StoreElement(outputs.lse.dtype, lse, outputs.lse.At(row, head));
  }
}

void MergeAndWrite(const RowOutputs& outputs, int64_t row, int64_t head,
                   absl::Span<PieceState> pieces) {
  const double lse = MergePieces(pieces);
  Write(outputs, row, head, pieces[0].values, lse);
}

// Finished outputs to be merged, state n weighing sum_n * e^(max_n).
class WeightedStates {
 public:
  WeightedStates(int64_t count, int64_t value_dim)
      : values_(std::max<int64_t>(1, count) * value_dim) {
    free_ = absl::MakeSpan(values_);
    value_dim_ = value_dim;
    states_.reserve(count);
  }

  // States without weight are left out, their values not even read.
  void Add(double max, double sum, DType dtype, const std::byte* from, int64_t stride) {
    if (max == -kInfinity || sum == 0) return;
    states_.push_back({max, sum, free_.first(value_dim_)});
    free_.remove_prefix(value_dim_);
    LoadElements(dtype, from, stride, value_dim_, states_.back().values.data());
  }
  // The log-sum-exp of all; the result is in values(). A state that is alone keeps its bits.
  double Merge() {
    if (states_.empty()) return -kInfinity;
    if (states_.size() == 1) return states_[0].max + std::log(states_[0].sum);
    for (PieceState& state : states_) {
      for (double& value : state.values) value *= state.sum;
    }
    return MergePieces(absl::MakeSpan(states_));
  }
  absl::Span<double> values() { return absl::MakeSpan(values_).first(value_dim_); }

 private:
  std::vector<double> values_;
  absl::Span<double> free_;
  int64_t value_dim_;
  std::vector<PieceState> states_;
};

class ReferenceEngine final : public AttendEngine {
 public:
  void Attend(const DenseBatch& batch, ThreadPool* threads,
              const RowOutputs& outputs) const override {
    AttendDense(batch, threads, [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
      MergeAndWrite(outputs, row, head, pieces);
    });
  }

  void AttendPartitions(const DenseBatch& batch, ThreadPool* threads,
                        const PagedDecodePartialArgs& outputs) const override {
    AttendDense(batch, threads, [&](int64_t row, int64_t head, absl::Span<PieceState> pieces) {
      const PieceState none;
      const int64_t num_pieces = static_cast<int64_t>(pieces.size());
      for (int64_t part = 0; part < outputs.max_logits.extent[2]; ++part) {
        const PieceState& piece = part < num_pieces ? pieces[part] : none;
        StoreElement(DType::kF32, piece.max, outputs.max_logits.At(row, head, part));
        StoreElement(DType::kF32, piece.sum, outputs.exp_sums.At(row, head, part));
        for (int64_t d = 0; d < outputs.tmp_out.extent[3]; ++d) {
          const double value = piece.sum == 0 ? 0 : piece.values[d] / piece.sum;
          StoreElement(DType::kF32, value, outputs.tmp_out.At(row, head, part, d));
        }
      }
    });
  }

  void AttendLists(const ConstTensorView& query, const std::vector<KeyLists>& lists, double scale,
                   ThreadPool* threads, const RowOutputs& outputs,
                   const TensorView& max_logits) const override {
    const ListedRows keys(lists);
    AttnParams params;  // nothing hides any key of a list
    params.scale = static_cast<float>(scale);
    params.causal = false;
    AttendBatch rows;
    rows.num_heads = query.extent[2];
    rows.key_dim = lists[0].cache.key_dim();
    rows.value_dim = lists[0].cache.value_dim();
    rows.keys = &keys;
    rows.params = &params;
    const int64_t q_len = query.extent[1];
    for (int64_t n = 0; n < query.extent[0] * q_len; ++n) {
      rows.requests.push_back({n, n, 1, keys.Count(n), {0, keys.Count(n)}});
    }
    AttendRows(
        threads, rows,
        [&](int64_t n, int64_t head, double* out) {
          LoadRow(*query.Select(0, n / q_len), n % q_len, head, out);
        },
        [&](int64_t n, int64_t head, absl::Span<PieceState> pieces) {
          const int64_t b = n / q_len, s = n % q_len;
          if (!max_logits.absent()) {
            StoreElement(max_logits.dtype, pieces[0].max, max_logits.At(b, s, head));
          }
          MergeAndWrite(OutputsOf(outputs, b), s, head, pieces);
        });
  }

  void ReduceSplits(ThreadPool* threads, const ReduceSplitsArgs& args) const override {
    const int64_t num_heads = args.out.extent[1], num_parts = args.max_logits.extent[2];
    ParallelFor(threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
      const int64_t row = item / num_heads, head = item % num_heads;
      WeightedStates states(num_parts, args.out.extent[2]);
      for (int64_t part = 0; part < num_parts; ++part) {
        states.Add(LoadElement(args.max_logits.dtype, args.max_logits.At(row, head, part)),
                   LoadElement(args.exp_sums.dtype, args.exp_sums.At(row, head, part)),
                   args.tmp_out.dtype, args.tmp_out.At(row, head, part), args.tmp_out.stride[3]);
      }
      const double lse = states.Merge();
      Write({args.sinks, 0, args.out, args.lse}, row, head, states.values(), lse);
    });
  }

  void MergeStates(ThreadPool* threads, const MergeStatesArgs& args) const override {
    const int64_t num_states = args.outs.extent[0], num_heads = args.out.extent[1];
    ParallelFor(threads, args.out.extent[0] * num_heads, [&](int64_t item, int) {
      const int64_t row = item / num_heads, head = item % num_heads;
      const bool has_context = args.tokens_with_context < 0 || row < args.tokens_with_context;
      WeightedStates states(num_states, args.out.extent[2]);
      for (int64_t n = has_context ? 0 : std::max<int64_t>(0, num_states - 1); n < num_states;
           ++n) {
        states.Add(LoadElement(args.lses.dtype, args.lses.At(n, row, head)), 1, args.outs.dtype,
                   args.outs.At(n, row, head), args.outs.stride[3]);
      }
      const double lse = states.Merge();
      Write({args.sinks, args.out_scale, args.out, args.lse}, row, head, states.values(), lse);
    });
  }

 private:
  static void AttendDense(
      const DenseBatch& batch, ThreadPool* threads,
      absl::FunctionRef<void(int64_t, int64_t, absl::Span<PieceState>)> finish) {
    const BatchRows keys(batch);
    AttendBatch rows;
    rows.num_heads = batch.num_heads();
    rows.num_kv_heads = batch.cache.num_kv_heads();
    rows.key_dim = batch.cache.key_dim();
    rows.value_dim = batch.cache.value_dim();
    rows.query_positions = batch.query_positions;
    rows.keys = &keys;
    rows.params = &batch.params;
    for (int64_t b = 0; b < batch.num_requests(); ++b) {
      const int64_t first = batch.query_start[b];
      rows.requests.push_back(
          {b, first, batch.query_start[b + 1] - first, batch.lengths[b], batch.pieces[b]});
    }
    AttendRows(
        threads, rows,
        [&](int64_t row, int64_t head, double* out) {
          LoadRow(batch.query, row, head, out);
          const int64_t kv_head = head / (rows.num_heads / rows.num_kv_heads);
          Multiply(out, batch.query.extent[2], ScaleAt(batch.params.scales.q, 0, kv_head));
          if (batch.query_rest.absent()) return;
          LoadRow(batch.query_rest, row, head, out + batch.query.extent[2]);
        },
        finish);
  }
};

}  // namespace

const AttendEngine& Float64Engine() {
  static const ReferenceEngine* const engine = new ReferenceEngine;
  return *engine;
}

const AttentionOps& CpuReference() {
  static const HostOps* const ops = new HostOps("CPU_REFERENCE", nullptr);
  return *ops;
}

}  // namespace kvblocks::attention
