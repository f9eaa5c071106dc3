#include "kvblocks/sim/report/worst_misses.h"

#include <utility>

#include "kvblocks/sim/report/report_section.h"

namespace kvblocks::sim {

void WorstMisses::OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                           const RequestProgress&, SimTime now) {
  const int64_t evicted = misses.blocks[static_cast<size_t>(MissReason::kEvicted)];
  if (record.is_resume || evicted == 0 || num_requests_ == 0) return;
  if (entries_.size() == num_requests_ && evicted < entries_.rbegin()->evicted_blocks) return;
  const TraceRequest& spec = record.request->spec;
  Entry entry{.evicted_blocks = evicted,
              .row = spec.row,
              .line = spec.line,
              .id = spec.id,
              .admitted = now,
              .known_tokens = record.num_queried_tokens,
              .hit_tokens = record.num_hit_tokens,
              .block_tokens = misses.block_tokens,
              .full_blocks = misses.num_full_blocks,
              .hit_blocks = misses.num_hit_blocks,
              .largest = {}};
  for (const EvictedRun& run : misses.evicted) {
    if (run.num_blocks > entry.largest.num_blocks) entry.largest = run;
  }
  entries_.insert(std::move(entry));
  if (entries_.size() > num_requests_) entries_.erase(std::prev(entries_.end()));
}

void WorstMisses::Fill(::kvblocks::report::v1::Explanation* out) const {
  for (const Entry& entry : entries_) {
    auto* worst = out->add_worst();
    worst->mutable_name()->set_id(entry.id);
    worst->mutable_name()->set_row(entry.row);
    worst->mutable_name()->set_line(entry.line);
    worst->set_admitted_s(Seconds(entry.admitted));
    worst->set_known_tokens(entry.known_tokens);
    worst->set_hit_tokens(entry.hit_tokens);
    worst->set_evicted_tokens(entry.evicted_blocks * entry.block_tokens);
    worst->set_other_missed_tokens((entry.full_blocks - entry.hit_blocks - entry.evicted_blocks) *
                                   entry.block_tokens);
    worst->set_partial_tokens(entry.known_tokens - entry.full_blocks * entry.block_tokens);
    if (entry.largest.num_blocks > 0) {
      worst->mutable_last_use()->set_age_s(Seconds(entry.largest.age));
      worst->mutable_last_use()->set_distance_blocks(entry.largest.distance);
    }
  }
}

}  // namespace kvblocks::sim
