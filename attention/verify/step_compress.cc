// VerifierRun: what DeepSeek V4's indexer chooses, and the rows that its compressor makes of
// states.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention/verify/verifier_run.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {

// Values are multiples of 1/64 below 2, so that scores are exact in float32 and ties are the same
// everywhere.
std::vector<int64_t> VerifierRun::ChosenRows(const Joint& joint, const Held& held,
                                                 int64_t num_rows,
                                                 absl::Span<const float> query) const {
  const RowShape shape = Shape(GroupOf(joint.rows_layer));
  std::vector<double> scores(static_cast<size_t>(num_rows));
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* key = PlainRow(joint.rows_layer, held, row);
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const float* q = query.data() + head * shape.key_size;
      scores[static_cast<size_t>(row)] +=
          std::max(0.0, std::inner_product(q, q + shape.key_size, key, 0.0));
    }
  }
  std::vector<int64_t> rows(static_cast<size_t>(num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  rows.resize(static_cast<size_t>(options_.joints[joint.index].topk));
  std::sort(rows.begin(), rows.end());
  return rows;
}

absl::Status VerifierRun::CheckCompressors() const {
  for (size_t i = 0; i < options_.compressors.size(); ++i) {
    const VerifiedCompressor& compressor = options_.compressors[i];
    const int64_t parts = compressor.overlap ? 2 : 1;
    const bool in_range = compressor.states_group < options_.groups.size();
    const bool has_states = in_range && options_.groups[compressor.states_group].is_mla;
    if (!has_states || compressor.ratio < 1 ||
        options_.groups[compressor.states_group].window / parts < compressor.ratio ||
        Shape(options_.groups[compressor.states_group]).key_size % (2 * parts) != 0) {
      return InvalidArgument("compressors[", i, "]: got group ", compressor.states_group,
                             " and ratio ", compressor.ratio, ", expected latent rows of a ",
                             "multiple of ", 2 * parts, " values and a window of ", parts,
                             " times the ratio at least");
    }
  }
  return absl::OkStatus();
}

absl::Status VerifierRun::Compress(const VerifiedCompressor& compressor, size_t layer) {
  const size_t g = layers_[layer].group;
  const VerifiedGroup& group = options_.groups[g];
  const int64_t parts = compressor.overlap ? 2 : 1, ratio = compressor.ratio;
  const int64_t floats = Shape(group).key_size, dim = floats / (2 * parts);
  std::vector<const Query*> completing;
  int64_t longest = 0;
  piece_rows_.clear();
  piece_starts_.assign(1, 0);
  for (const Query& query : queries_) {
    if ((query.position + 1) % ratio != 0) continue;
    completing.push_back(&query);
    longest = std::max(longest, query.position + 1);
    piece_rows_.push_back(static_cast<int32_t>(query.position + 1));
    piece_starts_.push_back(piece_starts_.back() + 1);
  }
  const auto n = static_cast<int64_t>(completing.size());
  if (n == 0) return absl::OkStatus();
  const int64_t columns = CeilDiv(longest, group.block_size);
  piece_tables_.clear();
  for (const Query* query : completing) AppendTable(g, *query, columns);

  // The states are there: nothing is stored.
  const std::vector<int64_t> no_slots(completing.size(), -1);
  query_values_.assign(static_cast<size_t>(n * parts * dim), 0);
  outputs_.assign(static_cast<size_t>(n * dim), 0);
  CompressTokensArgs args;
  args.kv = args.score = ViewOf(absl::MakeConstSpan(query_values_), {n, parts * dim});
  args.states = memory_.View(layer).k;
  args.slot_mapping = ViewOf(absl::MakeConstSpan(no_slots));
  args.query_start_loc = ViewOf(absl::MakeConstSpan(piece_starts_));
  args.seq_lens = ViewOf(absl::MakeConstSpan(piece_rows_));
  args.block_table = ViewOf(absl::MakeConstSpan(piece_tables_), {n, columns});
  args.ratio = ratio, args.overlap = compressor.overlap;
  args.out = ViewOf(absl::MakeSpan(outputs_), {n, dim});
  ExecContext context;
  context.threads = options_.threads;
  KVBLOCKS_RETURN_IF_ERROR(FailedOperation(layer, "CompressTokens",
                                           options_.ops->CompressTokens(context, args)));

  for (int64_t i = 0; i < n; ++i) {
    const Query& query = *completing[static_cast<size_t>(i)];
    const Held& held = *query.part->held;
    const int64_t end = query.position + 1, first = std::max<int64_t>(0, end - parts * ratio);
    for (int64_t d = 0; d < dim; ++d) {
      double sum = 0, weights = 0;
      for (int64_t p = first; p < end; ++p) {
        // Of two halves the older tokens give the first.
        const int64_t column = (parts == 2 && p >= end - ratio ? dim : 0) + d;
        const float* state = PlainRow(layer, held, p);
        const double weight = std::exp(static_cast<double>(state[parts * dim + column]));
        sum += weight * static_cast<double>(state[column]);
        weights += weight;
      }
      const double expected = sum / weights;
      const auto got = static_cast<double>(outputs_[static_cast<size_t>(i * dim + d)]);
      const double error = std::abs(got - expected);
      stats_.max_error = std::max(stats_.max_error, error);
      if (error <= options_.tolerance) continue;
      VerifierFailure failure{
          .request = held.name, .layer = static_cast<int64_t>(layer), .position = query.position};
      failure.text = absl::StrFormat(
          "value %d of the row made of %d states is %.9g, expected %.9g; ", d, end - first, got,
          expected);
      int64_t wrong = first;
      while (wrong < end && IsAsWritten(layer, held, wrong)) ++wrong;
      if (wrong < end) {
        failure.key_position = wrong;
        failure.block = BlockOfRow(g, held, wrong);
        failure.text += DescribeRow(layer, held, wrong);
      } else {
        failure.text += "all states are right, the row is not";
      }
      return Fail(std::move(failure));
    }
  }
  stats_.num_rows_compressed += n;
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
