// VerifierRun: steps of layers whose queries see a window and the rows of a compressed cache as
// one set of keys, or rows that an indexer chose; and of layers that keep states: the one a step
// begins with read, those it leaves written.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attention/verify/plain_attention.h"
#include "attention/verify/verifier_run.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

namespace {

template <typename T>
TensorView Writable(std::vector<T>& values, std::initializer_list<int64_t> extents) {
  return ViewOf(absl::MakeSpan(values), extents);
}

}  // namespace

absl::Status VerifierRun::CheckJoints() const {
  for (size_t i = 0; i < options_.joints.size(); ++i) {
    const VerifiedJoint& joint = options_.joints[i];
    const size_t num_groups = options_.groups.size();
    const bool in_range = joint.window_group < num_groups && joint.rows_group < num_groups;
    const auto is_latent = [&](size_t g) {
      const VerifiedGroup& group = options_.groups[g];
      return group.is_mla && group.sink_blocks.empty() && group.chunk == 0;
    };
    const bool has_window = joint.window_group != joint.rows_group;
    if (!in_range || !is_latent(joint.window_group) || !is_latent(joint.rows_group) ||
        (options_.groups[joint.window_group].window > 0) != has_window ||
        options_.groups[joint.rows_group].window != 0 || (!has_window && joint.topk == 0)) {
      return InvalidArgument("joints[", i, "]: got groups ", joint.window_group, " and ",
                             joint.rows_group, ", expected latent rows with a window and latent ",
                             "rows without one, or the latter twice with topk");
    }
    if (joint.topk < 0 || joint.topk > int64_t{1} << 20) {
      return InvalidArgument("joints[", i, "].topk: got ", joint.topk, ", expected 0 to 2^20");
    }
    if (!joint.sinks.empty() && static_cast<int64_t>(joint.sinks.size()) != options_.num_heads) {
      return InvalidArgument("joints[", i, "].sinks: got ", joint.sinks.size(),
                             ", expected one per head, or none");
    }
  }
  return absl::OkStatus();
}

void VerifierRun::AppendTable(size_t g, const Query& query, int64_t columns) {
  const ConstTensorView& all = builders_[g]->metadata().block_table;
  const auto* table = reinterpret_cast<const int32_t*>(
      all.At(batch_rows_[g][query.part->index], int64_t{0}));
  piece_tables_.insert(piece_tables_.end(), table, table + columns);
}

absl::Status VerifierRun::AttendJointly(size_t index) {
  if (queries_.empty()) return absl::OkStatus();
  const Joint& joint = joints_[index];
  // Queries of their own, as the layers are that attend so.
  const size_t query_layer = layers_.size() + index;
  KVBLOCKS_RETURN_IF_ERROR(RunJoint(joint, query_layer));
  const RowShape shape = Shape(GroupOf(joint.window_layer));
  const size_t floats = static_cast<size_t>(shape.num_heads * shape.value_size);
  std::vector<double> expected(floats);
  for (size_t i = 0; i < queries_.size(); ++i) {
    const auto got = absl::MakeConstSpan(outputs_).subspan(i * floats, floats);
    AttendReference(joint, query_layer, queries_[i], absl::MakeSpan(expected));
    const double error = LargestError(got, expected);
    if (error > options_.tolerance) return WrongJointOutput(joint, queries_[i], got, expected);
    stats_.max_error = std::max(stats_.max_error, error);
  }
  stats_.num_joint_rows_attended += static_cast<int64_t>(queries_.size());
  return absl::OkStatus();
}

// The paged side: lists of slots from the block tables, then one operation over both caches.
absl::Status VerifierRun::RunJoint(const Joint& joint, size_t query_layer) {
  const VerifiedGroup &window = GroupOf(joint.window_layer), &rows = GroupOf(joint.rows_layer);
  const size_t window_group = layers_[joint.window_layer].group;
  const size_t rows_group = layers_[joint.rows_layer].group;
  const RowShape shape = Shape(window);
  const int64_t n = static_cast<int64_t>(queries_.size());
  int64_t longest = 0;
  piece_rows_.clear();
  positions_.clear();
  piece_starts_.assign(1, 0);
  for (const Query& query : queries_) {
    longest = std::max(longest, query.position + 1);
    positions_.push_back(static_cast<int32_t>(query.position));
    piece_rows_.push_back(static_cast<int32_t>(query.position + 1));
    piece_starts_.push_back(piece_starts_.back() + 1);
  }
  const auto starts = ViewOf(absl::MakeConstSpan(piece_starts_));
  const auto tables_of = [&](size_t g) {
    const int64_t columns = CeilDiv(longest, options_.groups[g].block_size);
    piece_tables_.clear();
    for (const Query& query : queries_) AppendTable(g, query, columns);
    return ViewOf(absl::MakeConstSpan(piece_tables_), {n, columns});
  };

  absl::Status status;
  window_slots_.assign(static_cast<size_t>(n * window.window), 0);
  window_counts_.assign(static_cast<size_t>(n), 0);
  if (joint.has_window()) {
    status = BuildSwaIndices({.window = window.window,
                              .query_start_loc = starts,
                              .seq_lens = ViewOf(absl::MakeConstSpan(piece_rows_)),
                              .block_table = tables_of(window_group),
                              .block_size = BlockRows(window),
                              .indices = Writable(window_slots_, {n, window.window}),
                              .lens = Writable(window_counts_, {n})});
  }
  if (!status.ok()) return FailedOperation(joint.window_layer, "BuildSwaIndices", status);
  const int64_t query_floats = shape.num_heads * shape.key_size;
  query_values_.resize(static_cast<size_t>(n * query_floats));
  for (int64_t i = 0; i < n; ++i) {
    const Query& query = queries_[static_cast<size_t>(i)];
    values_.Fill(query.part->held->prefixes[static_cast<size_t>(query.position)],
                 static_cast<int64_t>(query_layer), TokenValueKind::kQuery,
                 absl::MakeSpan(query_values_.data() + i * query_floats,
                                static_cast<size_t>(query_floats)));
  }
  ExecContext context;
  context.threads = options_.threads;
  const int64_t topk = options_.joints[joint.index].topk;
  const bool has_rows = longest >= rows.compress_ratio;
  const int64_t most = topk > 0 && has_rows ? topk : longest / rows.compress_ratio;
  row_slots_.assign(static_cast<size_t>(n * most), 0);
  row_counts_.assign(static_cast<size_t>(n), 0);
  if (most > 0 && topk > 0) {
    index_weights_.assign(static_cast<size_t>(n * shape.num_heads), 1);
    IndexTopkArgs choose;
    choose.q = ViewOf(absl::MakeConstSpan(query_values_), {n, shape.num_heads, shape.key_size});
    choose.weights = ViewOf(absl::MakeConstSpan(index_weights_), {n, shape.num_heads});
    choose.cache = IndexCacheView{memory_.View(joint.rows_layer).k};
    choose.query_start_loc = starts;
    choose.seq_lens = ViewOf(absl::MakeConstSpan(piece_rows_));
    choose.block_table = tables_of(rows_group);
    choose.max_seq_len = longest;
    choose.ratio = rows.compress_ratio;
    choose.indices = Writable(row_slots_, {n, most});
    choose.lens = Writable(row_counts_, {n});
    status = FailedOperation(joint.rows_layer, "IndexTopk",
                             options_.ops->IndexTopk(context, choose));
    if (!status.ok()) return status;
  } else if (most > 0) {
    const TensorView slots = Writable(row_slots_, {n, most});
    const TensorView counts = Writable(row_counts_, {n});
    status = BuildDenseCompressedIndices({.ratio = rows.compress_ratio,
                                          .query_start_loc = starts,
                                          .positions = ViewOf(absl::MakeConstSpan(positions_)),
                                          .indices = slots,
                                          .lens = counts});
    if (status.ok()) {
      status = BuildTopkSlots({.query_start_loc = starts,
                               .indices = slots,
                               .block_table = tables_of(rows_group),
                               .block_size = BlockRows(rows),
                               .slots = slots,
                               .counts = counts});
    }
    if (!status.ok()) return FailedOperation(joint.rows_layer, "the list of rows", status);
  }

  outputs_.assign(static_cast<size_t>(n * shape.num_heads * shape.value_size), 0);
  SparseMlaDecodeArgs args;
  args.q = ViewOf(absl::MakeConstSpan(query_values_), {n, 1, shape.num_heads, shape.key_size});
  if (joint.has_window()) {
    args.main = {.cache = memory_.View(joint.window_layer),
                 .indices = ViewOf(absl::MakeConstSpan(window_slots_), {n, 1, window.window}),
                 .topk_len = ViewOf(absl::MakeConstSpan(window_counts_))};
  }
  if (most > 0) {
    SparseKeys& listed = joint.has_window() ? args.extra : args.main;
    listed = {.cache = memory_.View(joint.rows_layer),
              .indices = ViewOf(absl::MakeConstSpan(row_slots_), {n, 1, most}),
              .topk_len = ViewOf(absl::MakeConstSpan(row_counts_))};
  }
  args.scale = Scale(shape);
  const std::vector<float>& sinks = options_.joints[joint.index].sinks;
  if (!sinks.empty()) args.sinks = ViewOf(absl::MakeConstSpan(sinks));
  args.out = Writable(outputs_, {n, 1, shape.num_heads, shape.value_size});
  return FailedOperation(joint.window_layer, "SparseMlaDecode",
                         options_.ops->SparseMlaDecode(context, args));
}

void VerifierRun::AttendReference(const Joint& joint, size_t query_layer, const Query& query,
                                      absl::Span<double> out) const {
  const VerifiedGroup &window = GroupOf(joint.window_layer), &rows = GroupOf(joint.rows_layer);
  const RowShape shape = Shape(window);
  const Held& held = *query.part->held;
  std::vector<float> q(static_cast<size_t>(shape.num_heads * shape.key_size)), keys;
  values_.Fill(held.prefixes[static_cast<size_t>(query.position)],
               static_cast<int64_t>(query_layer), TokenValueKind::kQuery, absl::MakeSpan(q));
  const int64_t first = FirstVisible(window, query.position);
  const auto append = [&](size_t layer, int64_t begin, int64_t end) {
    const float* from = PlainRow(layer, held, begin);
    keys.insert(keys.end(), from, from + (end - begin) * shape.floats());
  };
  if (joint.has_window()) append(joint.window_layer, first, query.position + 1);
  const int64_t num_rows = NumRows(rows, query.position + 1);
  const int64_t topk = options_.joints[joint.index].topk;
  if (topk == 0 || num_rows <= topk) {
    append(joint.rows_layer, 0, num_rows);
  } else {
    for (const int64_t row : ChosenRows(joint, held, num_rows, q)) {
      append(joint.rows_layer, row, row + 1);
    }
  }
  AttendPlainly(shape, Scale(shape), q, keys.data(),
                static_cast<int64_t>(keys.size()) / shape.floats(),
                options_.joints[joint.index].sinks, out);
}

absl::Status VerifierRun::WrongJointOutput(const Joint& joint, const Query& query,
                                               absl::Span<const float> got,
                                               absl::Span<const double> expected) {
  const Held& held = *query.part->held;
  const int64_t first = joint.has_window()
                            ? FirstVisible(GroupOf(joint.window_layer), query.position)
                            : query.position + 1;
  const int64_t num_rows = NumRows(GroupOf(joint.rows_layer), query.position + 1);
  VerifierFailure failure{.request = held.name,
                          .layer = static_cast<int64_t>(joint.window_layer),
                          .position = query.position};
  size_t worst = 0;
  while (std::abs(static_cast<double>(got[worst]) - expected[worst]) <= options_.tolerance) ++worst;
  const std::string value = absl::StrFormat("value %d is %.9g, expected %.9g from", worst,
                                            got[worst], expected[worst]);
  failure.text =
      joint.has_window()
          ? absl::StrCat("jointly with ", LayerName(joint.rows_layer), ", ", value, " ",
                         query.position + 1 - first, " tokens of the window and ", num_rows,
                         " rows; ")
          : absl::StrCat(value, " rows that an indexer chose among ", num_rows, "; ");
  const auto find = [&](size_t layer, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (IsAsWritten(layer, held, row)) continue;
      failure.layer = static_cast<int64_t>(layer);
      failure.key_position = TokenOfRow(GroupOf(layer), row);
      failure.block = BlockOfRow(layers_[layer].group, held, row);
      absl::StrAppend(&failure.text, DescribeRow(layer, held, row));
      return true;
    }
    return false;
  };
  if (!find(joint.window_layer, first, query.position + 1) &&
      !find(joint.rows_layer, 0, num_rows)) {
    absl::StrAppend(&failure.text, "all rows are right, the ",
                    options_.joints[joint.index].topk > 0 ? "choice among them or the " : "",
                    "attention over them is not");
  }
  return Fail(std::move(failure));
}

// What the layer's state is behind so many tokens; good until the next call.
absl::Span<const float> VerifierRun::StateOf(size_t layer, const Held& held,
                                                 int64_t num_tokens) {
  state_.resize(static_cast<size_t>(Shape(GroupOf(layer)).floats()));
  values_.Fill(held.prefixes[static_cast<size_t>(num_tokens - 1)], static_cast<int64_t>(layer),
               TokenValueKind::kKeyAndValue, absl::MakeSpan(state_));
  return state_;
}

void VerifierRun::WriteState(size_t layer, const Held& held, int64_t num_tokens,
                                 int32_t block) {
  memory_.Write(layer, block, 0, StateOf(layer, held, num_tokens).data());
  ++stats_.num_states_written;
}

absl::Status VerifierRun::ReadStates(const Part& part) {
  if (part.num_computed == 0) return absl::OkStatus();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (!group.is_state) continue;
    const size_t entry = static_cast<size_t>((part.num_computed - 1) / group.block_size);
    const int32_t block = part.held->tables[layers_[layer].group][entry];
    ++stats_.num_states_read;
    const float* expected = StateOf(layer, *part.held, part.num_computed).data();
    if (memory_.Equals(layer, block, 0, expected)) continue;
    return Fail({.request = part.held->name,
                 .layer = static_cast<int64_t>(layer),
                 .position = part.num_computed,
                 .key_position = part.num_computed - 1,
                 .block = block,
                 .text = absl::StrCat("the state behind token ", part.num_computed - 1,
                                      ", with which the step begins, is not there: block ", block,
                                      ", entry ", entry, " of the table, ",
                                      DescribeBlock(layer, block, 0))});
  }
  return absl::OkStatus();
}

absl::Status VerifierRun::WriteStates(const Part& part) {
  const Held& held = *part.held;
  const int64_t end = held.num_tokens();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const VerifiedGroup& group = GroupOf(layer);
    if (!group.is_state) continue;
    const size_t g = layers_[layer].group;
    const auto write = [&](int64_t num_tokens) {
      const int64_t entry = (num_tokens - 1) / group.block_size;
      WriteState(layer, held, num_tokens, held.tables[g][static_cast<size_t>(entry)]);
    };
    for (int64_t at = (part.num_computed / group.block_size + 1) * group.block_size;
         group.at_boundaries && at < end; at += group.block_size) {
      write(at);
    }
    write(end);
    for (const VerifiedCheckpoint& checkpoint : part.checkpoints) {
      if (checkpoint.group == g) WriteState(layer, held, checkpoint.num_tokens, checkpoint.block);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
