#include "block_pool/eviction/retention.h"

#include <algorithm>

#include "kvblocks/check.h"

namespace kvblocks {

void Retention::Set(BlockId id, int32_t priority, int64_t expires_at, int64_t number) {
  BlockRetention& item = items_[static_cast<size_t>(id)];
  if (contains(id)) {
    item = {.priority = std::max(item.priority, priority),
            .expires_at = std::max(item.expires_at, expires_at)};
    Drop(id);
    ++totals_.num_renewed;
  } else {
    item = {.priority = priority, .expires_at = expires_at};
    ++totals_.num_begun;
  }
  by_rank_.Add(id, {.first = item.priority, .second = number});
  if (item.expires_at != kNeverExpires) {
    by_end_.Add(id, {.first = item.expires_at, .second = number});
  }
  totals_.peak = std::max<int64_t>(totals_.peak, size());
}

void Retention::Clear() {
  totals_.num_removed += size();
  by_rank_.Clear();
  by_end_.Clear();
  candidates_.Clear();
}

absl::Status Retention::CheckInvariants() const {
  const RetentionTotals& t = totals_;
  if (size() > most_ || t.peak > most_ ||
      t.num_begun !=
          size() + t.num_displaced + t.num_expired + t.num_taken + t.num_removed) {
    return BrokenInvariant(size(), " blocks are retained of at most ", most_, "; ", t.num_begun,
                           " were, ", t.num_displaced, " gave way, ", t.num_expired, " expired, ",
                           t.num_taken, " were taken and ", t.num_removed, " removed");
  }
  if (!by_rank_.IsConsistent() || !by_end_.IsConsistent() || !candidates_.IsConsistent()) {
    return BrokenInvariant("a heap of retained blocks is out of order");
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    const auto id = static_cast<BlockId>(i);
    const bool ends = contains(id) && items_[i].expires_at != kNeverExpires;
    if (by_end_.contains(id) != ends || (candidates_.contains(id) && !contains(id))) {
      return BrokenInvariant("block ", id, " is ", contains(id) ? "" : "not ",
                             "retained, until ", items_[i].expires_at, "; the heaps disagree");
    }
  }
  return absl::OkStatus();
}

int32_t NumRetained(const Retention& retention) { return retention.size(); }
int32_t MostRetained(const Retention& retention) { return retention.most(); }
const RetentionTotals& TotalsOf(const Retention& retention) { return retention.totals(); }

}  // namespace kvblocks
