#include "attention/cpu/reference_engine.h"

#include <algorithm>
#include <cmath>

#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/cpu/visibility.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"

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
    const int64_t pieces = static_cast<int64_t>(request.cuts.size()) + 1;
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
      const int64_t p = batch.query_positions.absent()
                            ? request.kv_len - request.q_len + i
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

}  // namespace

void Attend(const ExecContext& context, const AttendBatch& batch,
            absl::FunctionRef<void(int64_t, int64_t, double*)> load_query,
            absl::FunctionRef<void(int64_t, int64_t, absl::Span<PieceState>)> finish) {
  const Visibility visibility(*batch.params, batch.num_heads, batch.num_kv_heads);
  const std::vector<Tile> tiles = CutIntoTiles(batch);
  ParallelFor(context.threads, static_cast<int64_t>(tiles.size()), [&](int64_t item, int) {
    const Tile& tile = tiles[item];
    TileRun run(batch, visibility, tile);
    const size_t num_rows = run.rows().size();
    for (size_t r = 0; r < num_rows; ++r) {
      load_query(run.rows()[r].row, run.rows()[r].head, run.query(r));
    }
    const std::vector<int64_t>& cuts = tile.request->cuts;
    const size_t num_pieces = cuts.size() + 1;
    std::vector<double> values(num_pieces * num_rows * batch.value_dim);
    std::vector<PieceState> states(num_pieces * num_rows);
    for (size_t n = 0; n < states.size(); ++n) {
      states[n].values = absl::MakeSpan(values).subspan(n * batch.value_dim, batch.value_dim);
    }
    for (size_t piece = 0; piece < num_pieces; ++piece) {
      run.Piece(piece == 0 ? 0 : cuts[piece - 1],
                piece == cuts.size() ? tile.request->kv_len : cuts[piece],
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

void ReferenceWriter::Write(int64_t row, int64_t head, absl::Span<double> values,
                            double row_lse) const {
  double factor = 1;
  if (!sinks.absent() && row_lse != -kInfinity) {
    factor = 1 + std::exp(LoadElement(sinks.dtype, sinks.At(head)) - row_lse);
  }
  // Of an infinite sink not even a NaN is left, nor the sign of a zero.
  const bool is_all_sink = !sinks.absent() && LoadElement(sinks.dtype, sinks.At(head)) == kInfinity;
  for (size_t d = 0; d < values.size(); ++d) {
    double value = is_all_sink ? 0 : values[d] / factor;
    if (out_scale > 0) value /= out_scale;
    StoreElement(out.dtype, value, out.At(row, head, d));
  }
  if (!lse.absent()) StoreElement(lse.dtype, row_lse, lse.At(row, head));
}

std::vector<int64_t> CutsOf(const SplitPolicy& policy, int64_t kv_len, int64_t block_size) {
  int64_t step = 0;
  if (policy.kind == SplitPolicy::Kind::kFixed) step = policy.value;
  if (policy.kind == SplitPolicy::Kind::kCount && policy.value > 0) {
    step = CeilDiv(CeilDiv(kv_len, block_size), policy.value) * block_size;
  }
  std::vector<int64_t> cuts;
  if (step <= 0) return cuts;
  for (int64_t cut = step; cut < kv_len; cut += step) cuts.push_back(cut);
  return cuts;
}

std::vector<int64_t> CutsOf(const SplitPlan& plan, int64_t request, int64_t kv_len) {
  const int64_t first_key = FirstKey(kv_len, plan.type);
  std::vector<int64_t> cuts;
  // The first piece begins where the request's visible keys do, which is no cut.
  for (int64_t n = plan.split_offsets[request] + 1; n < plan.split_offsets[request + 1]; ++n) {
    const int64_t cut = first_key + plan.ranges[n].begin_tile * plan.tile;
    if (cut < kv_len) cuts.push_back(cut);
  }
  return cuts;
}

std::vector<int64_t> CutsAt(int64_t position, int64_t kv_len) {
  if (position <= 0 || position >= kv_len) return {};
  return {position};
}

const AttentionOps& CpuReference() {
  static const CpuReferenceOps* const ops = new CpuReferenceOps;
  return *ops;
}

}  // namespace kvblocks::attention
