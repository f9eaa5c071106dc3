// VerifierRun: a step with tensors - rows written, queries attended, results compared.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "attention/verify/verifier_run.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

// Chunks of a prompt are attended to in runs of so many queries, if not as a whole.
constexpr int64_t kRunLength = 4;

template <typename T>
ConstTensorView Floats(const T& values, std::initializer_list<int64_t> extents,
                       std::initializer_list<int64_t> strides = {}, int64_t offset = 0) {
  return ConstTensorView::Make(reinterpret_cast<const std::byte*>(values.data() + offset),
                               DType::kF32, extents, strides)
      .value();
}

}  // namespace

// --- The batch ---

// Grows by doubling, so that builders are made a few times per run.
void VerifierRun::MakeRoom() {
  Room needed{.num_reqs = static_cast<int64_t>(parts_.size())};
  for (const Part& part : parts_) {
    needed.num_tokens += part.held->num_tokens() - part.num_computed;
    needed.seq_len = std::max(needed.seq_len, part.held->num_tokens());
  }
  int64_t num_encoder_tokens = 0;
  for (const Part& part : parts_) {
    num_encoder_tokens += part.held->num_encoder_tokens;
    needed.seq_len = std::max(needed.seq_len, part.held->num_encoder_tokens);
  }
  needed.num_tokens = std::max(needed.num_tokens, num_encoder_tokens);
  const auto grow = [](int64_t& room, int64_t need) {
    if (need <= room) return false;
    room = std::max(need, 2 * room);
    return true;
  };
  const bool grew = static_cast<int>(grow(room_.num_reqs, needed.num_reqs)) |
                    static_cast<int>(grow(room_.num_tokens, needed.num_tokens)) |
                    static_cast<int>(grow(room_.seq_len, needed.seq_len));
  if (grew) std::fill(builders_.begin(), builders_.end(), std::nullopt);
}

// Tables and slots of the step, by the builder that engines use. Sink tokens count as computed.
absl::Status VerifierRun::BuildMetadata(size_t g) {
  const VerifiedGroup& group = options_.groups[g];
  if (group.num_layers == 0 || group.is_state) return absl::OkStatus();
  const int64_t num_sink_tokens = NumSinkRows(group) * group.compress_ratio;
  if (!builders_[g]) {
    MetadataBuilderOptions options;
    options.groups = {{.manager_block_size = group.block_size,
                       .kernel_block_size = BlockRows(group),
                       .num_blocks = options_.num_blocks,
                       .window = group.window,
                       .compression_ratio = group.compress_ratio}};
    // Groups of one layer or more have one map: a page's neighbours are the same for all of them.
    const BlockMap& map = memory_.Map(FirstLayerOf(g));
    if (map != BlockMap()) options.groups[0].block_map = map;
    options.max_num_reqs = room_.num_reqs;
    options.max_num_tokens = room_.num_tokens;
    options.max_seq_len = room_.seq_len + num_sink_tokens;
    KVBLOCKS_ASSIGN_OR_RETURN(auto builder, AttentionMetadataBuilder::Create(options));
    builders_[g] = std::move(builder);
  }
  std::vector<RequestInput> requests;
  std::vector<absl::Span<const int32_t>> tables;
  std::vector<std::vector<int32_t>> with_sinks;
  with_sinks.reserve(parts_.size());
  std::vector<size_t> part_of_row;  // of the input
  for (const Part& part : parts_) {
    if (group.is_cross) {
      // As if its rows were all new: the table has all of them.
      if (part.held->num_encoder_tokens == 0) continue;
      requests.push_back({.num_scheduled_tokens = part.held->num_encoder_tokens});
    } else {
      requests.push_back({.num_computed_tokens = part.num_computed + num_sink_tokens,
                          .num_scheduled_tokens = part.held->num_tokens() - part.num_computed});
    }
    part_of_row.push_back(part.index);
    const std::vector<int32_t>& own = part.held->tables[g];
    if (group.sink_blocks.empty()) {
      tables.push_back(own);
      continue;
    }
    with_sinks.push_back(group.sink_blocks);
    with_sinks.back().insert(with_sinks.back().end(), own.begin(), own.end());
    tables.push_back(with_sinks.back());
  }
  BatchInput input;
  input.requests = requests;
  input.block_ids = tables;
  if (absl::Status status = builders_[g]->Build(input); !status.ok()) {
    return FailedOperation(FirstLayerOf(g), "the batch", status);
  }
  batch_rows_[g].assign(parts_.size(), -1);
  const absl::Span<const int32_t> permutation = builders_[g]->permutation();
  for (size_t row = 0; row < permutation.size(); ++row) {
    batch_rows_[g][part_of_row[static_cast<size_t>(permutation[row])]] = static_cast<int32_t>(row);
  }
  return absl::OkStatus();
}

size_t VerifierRun::FirstLayerOf(size_t g) const {
  size_t layer = 0;
  while (layers_[layer].group != g) ++layer;
  return layer;
}

// --- Writing ---

absl::Status VerifierRun::WriteRows(size_t g) {
  const VerifiedGroup& group = options_.groups[g];
  if (group.num_layers == 0 || group.is_state || parts_.empty()) return absl::OkStatus();
  const CommonAttentionMetadata& batch = builders_[g]->metadata();
  const RowShape& shape = Shape(group);
  const int64_t floats = shape.floats();
  const int64_t num_rows = batch.num_actual_tokens;
  ConstTensorView slots = batch.slot_mapping;
  if (group.is_cross) {
    // Only requests that come in write.
    if (num_rows == 0) return absl::OkStatus();
    cross_slots_.assign(slots.as<int64_t>(), slots.as<int64_t>() + num_rows);
    for (const Part& part : parts_) {
      const int32_t row = batch_rows_[g][part.index];
      if (part.is_new || row < 0) continue;
      std::fill_n(cross_slots_.begin() + batch.host_query_start_loc[static_cast<size_t>(row)],
                  part.held->num_encoder_tokens, int64_t{-1});
    }
    slots = ViewOf(absl::MakeConstSpan(cross_slots_));
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].group != g) continue;
    new_rows_.assign(static_cast<size_t>(num_rows * floats), 0);
    for (const Part& part : parts_) {
      // One row per token; where a row stands for several, the last of them brings it and the slots
      // of the others are -1.
      const int64_t num_tokens = part.held->num_tokens();
      if (batch_rows_[g][part.index] < 0) continue;
      float* to =
          new_rows_.data() +
          batch.host_query_start_loc[static_cast<size_t>(batch_rows_[g][part.index])] * floats;
      if (group.is_cross) {
        if (!part.is_new) continue;
        std::copy(part.held->rows[layer].begin(), part.held->rows[layer].end(), to);
        stats_.num_rows_written += part.held->num_encoder_tokens;
        continue;
      }
      for (int64_t p = part.num_computed; p < num_tokens; ++p, to += floats) {
        if ((p + 1) % group.compress_ratio != 0) continue;
        std::copy_n(PlainRow(layer, *part.held, NumRows(group, p + 1) - 1), floats, to);
        ++stats_.num_rows_written;
      }
    }
    const KvCacheView cache = memory_.View(layer);
    absl::Status status;
    if (group.is_mla) {
      ConcatAndCacheMlaArgs args;
      args.kv_c = Floats(new_rows_, {num_rows, shape.value_size}, {floats, 1});
      args.k_pe =
          Floats(new_rows_, {num_rows, floats - shape.value_size}, {floats, 1}, shape.value_size);
      args.slot_mapping = slots;
      args.cache = cache;
      status = options_.ops->ConcatAndCacheMla(context_, args);
    } else {
      ReshapeAndCacheArgs args;
      args.k = Floats(new_rows_, {num_rows, shape.num_kv_heads, shape.key_size},
                      {floats, shape.key_size, 1});
      args.v = Floats(new_rows_, {num_rows, shape.num_kv_heads, shape.value_size},
                      {floats, shape.value_size, 1}, shape.num_kv_heads * shape.key_size);
      args.slot_mapping = slots;
      args.cache = cache;
      status = options_.ops->ReshapeAndCache(context_, args);
    }
    if (!status.ok()) return FailedOperation(layer, "write", status);
  }
  return absl::OkStatus();
}

// --- Choosing queries ---

void VerifierRun::ChooseQueries() {
  queries_.clear();
  const size_t budget = options_.max_rows_per_step == 0
                            ? std::numeric_limits<size_t>::max()
                            : static_cast<size_t>(options_.max_rows_per_step);
  const auto take = [&](const Part& part, int64_t position, size_t limit) {
    if (queries_.size() >= limit) return false;
    queries_.push_back({&part, position});
    return true;
  };
  const auto last = [](const Part& part) { return part.held->num_tokens() - 1; };
  // The last row of each: of requests whose tables changed up to half of the budget, then of the
  // others, both in turn; then of the rest.
  const size_t num_parts = parts_.size();
  size_t num_others = 0;
  for (size_t i = 0; i < num_parts; ++i) {
    Part& part = parts_[(turn_ + i) % num_parts];
    part.is_queried = part.changed && take(part, last(part), budget - budget / 2);
  }
  for (size_t i = 0; i < num_parts; ++i) {
    Part& part = parts_[(turn_ + i) % num_parts];
    if (part.changed || !take(part, last(part), budget)) continue;
    part.is_queried = true;
    ++num_others;
  }
  for (Part& part : parts_) {
    if (!part.is_queried) part.is_queried = take(part, last(part), budget);
  }
  turn_ += std::max<size_t>(num_others, 1);
  // Of prompts then a run at the end, the first row, and the rest if all are wanted.
  for (const Part& part : parts_) {
    if (!part.is_queried) continue;
    for (int64_t p = last(part) - 1; p >= part.num_computed && p > last(part) - kRunLength; --p) {
      take(part, p, budget);
    }
  }
  for (const Part& part : parts_) {
    for (int64_t p = part.num_computed; p <= last(part) - kRunLength; ++p) {
      take(part, p, budget);
      if (options_.max_rows_per_step != 0) break;
    }
  }
  std::sort(queries_.begin(), queries_.end(), [](const Query& a, const Query& b) {
    return a.part != b.part ? a.part < b.part : a.position < b.position;
  });
}

// --- Attending ---

absl::Status VerifierRun::Attend(size_t g) {
  const VerifiedGroup& group = options_.groups[g];
  if (group.is_state) return absl::OkStatus();
  std::vector<Piece> decodes, prefills;
  for (size_t i = 0; i < queries_.size();) {
    const Query& first = queries_[i];
    size_t end = i + 1;
    // Where a row stands for several tokens, successive queries see the same rows; those of an
    // encoder always do.
    while (group.compress_ratio == 1 && !group.is_cross && end < queries_.size() &&
           queries_[end].part == first.part &&
           queries_[end].position == queries_[end - 1].position + 1) {
      ++end;
    }
    const Piece piece{.first_query = i,
                      .num_queries = static_cast<int64_t>(end - i),
                      .num_rows = RowsSeen(group, *first.part->held,
                                           queries_[end - 1].position + 1)};
    if (piece.num_rows > 0) (piece.num_queries == 1 ? decodes : prefills).push_back(piece);
    i = end;
  }
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (layers_[layer].group != g) continue;
    for (const std::vector<Piece>* pieces : {&decodes, &prefills}) {
      if (pieces->empty()) continue;
      KVBLOCKS_RETURN_IF_ERROR(AttendPieces(layer, *pieces));
    }
  }
  return absl::OkStatus();
}

absl::Status VerifierRun::AttendPieces(size_t layer, absl::Span<const Piece> pieces) {
  batch_.clear();
  for (const Piece& piece : pieces) {
    for (int64_t i = 0; i < piece.num_queries; ++i) {
      batch_.push_back(piece.first_query + static_cast<size_t>(i));
    }
  }
  KVBLOCKS_RETURN_IF_ERROR(RunPaged(layer, pieces));
  return Compare(layer);
}

absl::Status VerifierRun::RunPaged(size_t layer, absl::Span<const Piece> pieces) {
  const size_t g = layers_[layer].group;
  const VerifiedGroup& group = options_.groups[g];
  const RowShape& shape = Shape(group);
  const int64_t num_queries = static_cast<int64_t>(batch_.size());
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());

  int64_t max_rows = 0, max_queries = 0;
  for (const Piece& piece : pieces) {
    max_rows = std::max(max_rows, piece.num_rows);
    max_queries = std::max(max_queries, piece.num_queries);
  }
  const int64_t columns = CeilDiv(max_rows, BlockRows(group));
  const ConstTensorView& all_tables = builders_[g]->metadata().block_table;
  piece_tables_.clear();
  piece_rows_.clear();
  piece_starts_.assign(1, 0);
  for (const Piece& piece : pieces) {
    const size_t part = queries_[piece.first_query].part->index;
    const auto* table =
        reinterpret_cast<const int32_t*>(all_tables.At(batch_rows_[g][part], int64_t{0}));
    piece_tables_.insert(piece_tables_.end(), table, table + columns);
    piece_rows_.push_back(static_cast<int32_t>(piece.num_rows));
    piece_starts_.push_back(piece_starts_.back() + static_cast<int32_t>(piece.num_queries));
  }

  const int64_t query_floats = shape.num_heads * shape.key_size;
  query_values_.resize(static_cast<size_t>(num_queries * query_floats));
  for (int64_t i = 0; i < num_queries; ++i) {
    FillQuery(layer, queries_[batch_[static_cast<size_t>(i)]],
              absl::MakeSpan(query_values_).subspan(i * query_floats, query_floats));
  }
  outputs_.assign(static_cast<size_t>(num_queries * shape.num_heads * shape.value_size), 0);

  AttnParams params;
  params.scale = Scale(shape);
  if (group.window > 0) params.window_left = group.window - 1;
  params.chunk = group.chunk;
  if (!group.sinks.empty()) params.sinks = ViewOf(absl::MakeConstSpan(group.sinks));
  const ConstTensorView q = Floats(query_values_, {num_queries, shape.num_heads, shape.key_size});
  const TensorView out =
      ViewOf(absl::MakeSpan(outputs_), {num_queries, shape.num_heads, shape.value_size});
  const auto tables = ViewOf(absl::MakeConstSpan(piece_tables_), {num_pieces, columns});
  const auto lengths = ViewOf(absl::MakeConstSpan(piece_rows_));
  const auto starts = ViewOf(absl::MakeConstSpan(piece_starts_));
  const auto fill = [&](auto& args) {
    args.cache = memory_.View(layer);
    args.block_table = tables;
    args.seq_lens = lengths;
    args.max_seq_len = max_rows;
    args.params = params;
    args.out = out;
  };
  if (group.is_mla) {
    MlaDecodeArgs args;
    fill(args);
    args.q_lat = q;
    args.query_start_loc = starts;
    return FailedOperation(layer, "MlaDecode", options_.ops->MlaDecode(context_, args));
  }
  if (max_queries == 1) {
    PagedDecodeArgs args;
    fill(args);
    args.q = q;
    return FailedOperation(layer, "PagedDecode", options_.ops->PagedDecode(context_, args));
  }
  PagedPrefillArgs args;
  fill(args);
  args.q = q;
  args.query_start_loc = starts;
  args.max_query_len = max_queries;
  return FailedOperation(layer, "PagedPrefill", options_.ops->PagedPrefill(context_, args));
}

void VerifierRun::FillQuery(size_t layer, const Query& query, absl::Span<float> out) const {
  values_.Fill(query.part->held->prefixes[static_cast<size_t>(query.position)],
               static_cast<int64_t>(layer), TokenValueKind::kQuery, out);
}

float VerifierRun::Scale(const RowShape& shape) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(shape.key_size)));
}

void AttendPlainly(const RowShape& shape, float scale, absl::Span<const float> query,
                   const float* rows, int64_t num_rows, absl::Span<const float> sinks,
                   absl::Span<double> out) {
  const int64_t kv_heads = shape.num_kv_heads;
  const auto columns = [&](int64_t first, int64_t size) {
    return *ConstTensorView::Make(reinterpret_cast<const std::byte*>(rows + first), DType::kF32,
                                  {num_rows, kv_heads, size}, {shape.floats(), size, 1});
  };
  const int32_t starts[] = {0, 1, 0, static_cast<int32_t>(num_rows)};
  VarlenSelfAttentionArgs args;
  args.q = ViewOf(query, {1, shape.num_heads, shape.key_size});
  args.k = columns(0, shape.key_size);
  args.v = columns(shape.is_mla ? 0 : kv_heads * shape.key_size, shape.value_size);
  args.query_start_loc = ViewOf(absl::MakeConstSpan(starts, 2));
  args.kv_start_loc = ViewOf(absl::MakeConstSpan(starts + 2, 2));
  args.params.scale = scale;
  args.params.causal = false;
  if (!sinks.empty()) args.params.sinks = ViewOf(sinks);
  args.out = ViewOf(out, {1, shape.num_heads, shape.value_size});
  const absl::Status status = CpuReference().VarlenSelfAttention(ExecContext(), args);
  KVBLOCKS_CHECK(status.ok(), status.ToString());
}

void VerifierRun::AttendReference(size_t layer, const Query& query, int64_t first_row,
                                      bool with_sinks, absl::Span<double> out) const {
  const VerifiedGroup& group = GroupOf(layer);
  const RowShape& shape = Shape(group);
  const Held& held = *query.part->held;
  std::vector<float> q(static_cast<size_t>(shape.num_heads * shape.key_size));
  FillQuery(layer, query, absl::MakeSpan(q));
  AttendPlainly(shape, Scale(shape), q, PlainRow(layer, held, first_row),
                RowsSeen(group, held, query.position + 1) - first_row,
                with_sinks ? absl::MakeConstSpan(group.sinks) : absl::Span<const float>(), out);
}

// --- Comparing ---

absl::Status VerifierRun::Compare(size_t layer) {
  const VerifiedGroup& group = GroupOf(layer);
  const size_t floats = static_cast<size_t>(Shape(group).num_heads * Shape(group).value_size);
  errors_.assign(batch_.size(), 0);
  ParallelFor(options_.threads, static_cast<int64_t>(batch_.size()), [&](int64_t i, int) {
    const Query& query = queries_[batch_[static_cast<size_t>(i)]];
    std::vector<double> expected(floats);
    AttendReference(layer, query, FirstVisible(group, query.position), true,
                    absl::MakeSpan(expected));
    errors_[static_cast<size_t>(i)] = LargestError(
        absl::MakeConstSpan(outputs_).subspan(static_cast<size_t>(i) * floats, floats), expected);
  });
  for (size_t i = 0; i < batch_.size(); ++i) {
    const Query& query = queries_[batch_[i]];
    if (errors_[i] > options_.tolerance) {
      return WrongOutput(layer, query, absl::MakeConstSpan(outputs_).subspan(i * floats, floats));
    }
    stats_.max_error = std::max(stats_.max_error, errors_[i]);
    stats_.num_keys_attended += RowsSeen(group, *query.part->held, query.position + 1) -
                                FirstVisible(group, query.position);
  }
  stats_.num_rows_attended += static_cast<int64_t>(batch_.size());
  return absl::OkStatus();
}

// Infinite if a value is no number.
double VerifierRun::LargestError(absl::Span<const float> got,
                                     absl::Span<const double> expected) {
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(error <= largest)) {
      largest = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    }
  }
  return largest;
}

}  // namespace kvblocks::attention
