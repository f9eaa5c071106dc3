#include "kvblocks/sim/cost/attention_counts.h"

namespace kvblocks::sim {
namespace {

// Rows that the queries 1..n see, summed: floor(j / ratio), at most `limit` each.
Wide RowsSeenUpTo(Wide n, Wide ratio, Wide limit) {
  // From token ratio x limit on every query sees the limit.
  const Wide growing = std::min(n, ratio * limit - 1);
  const Wide full = growing / ratio;
  const Wide rest = growing % ratio;
  return ratio * full * (full - 1) / 2 + full * (rest + 1) + (n - growing) * limit;
}

// Positions within their chunk of the queries 1..n, counted from 1, summed.
Wide PlacesUpTo(Wide n, Wide chunk) {
  const Wide full = n / chunk;
  const Wide rest = n % chunk;
  return full * (chunk * (chunk + 1) / 2) + rest * (rest + 1) / 2;
}

}  // namespace

Wide AttendedPairs(const AttentionReach& reach, int64_t context, int64_t count) {
  const Wide end = Wide{context} + count;
  if (reach.chunk > 0) return PlacesUpTo(end, reach.chunk) - PlacesUpTo(context, reach.chunk);
  return RowsSeenUpTo(end, reach.ratio, reach.limit) -
         RowsSeenUpTo(context, reach.ratio, reach.limit);
}

int64_t AttendedRows(const AttentionReach& reach, int64_t context, int64_t count) {
  if (reach.chunk > 0) return context % reach.chunk + count;
  const Wide read = Wide{reach.limit} * (reach.is_window ? 1 : count);
  const int64_t before = context / reach.ratio;
  const int64_t written = (context + count) / reach.ratio - before;
  return static_cast<int64_t>(std::min<Wide>(before, read)) + written;
}

}  // namespace kvblocks::sim
