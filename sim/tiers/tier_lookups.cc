// What admissions found in tiers, and why they found no more.

#include <algorithm>

#include "sim/tiers/tier_connector.h"
#include "offload/tier.h"

namespace kvblocks::sim {

using offload::TierId;

void TierConnector::OnAdmission(const AdmissionRecord& record, SimTime) {
  const SimRequest& request = *record.request;
  const PrefixContent& content = request.kv->content();
  const int64_t found = record.num_hit_tokens + record.num_external_tokens;
  stored_[&request] = record.num_hit_tokens;
  load_totals_.num_not_worth_it += static_cast<int64_t>(declined_.erase(&request));
  offload_->Touch(content, found);
  CountMisses(record);
  if (record.is_resume) return;
  for (size_t t = 0; t < last_lookup_.size(); ++t) {
    for (size_t i = 0; i < kNumTierMisses; ++i) {
      states_[t]->totals.missed_tokens[i] += last_lookup_[t].missed_tokens[i];
    }
  }
  ++load_totals_.num_admissions;
  load_totals_.num_known_tokens += record.num_queried_tokens;
  load_totals_.num_device_tokens += record.num_hit_tokens;
  load_totals_.num_loaded_tokens += record.num_external_tokens;
}

// After a load that brought nothing.
void TierConnector::OnReadmission(const AdmissionRecord& record, SimTime) {
  const SimRequest& request = *record.request;
  stored_[&request] = record.num_hit_tokens;
  declined_.erase(&request);
  offload_->Touch(request.kv->content(), record.num_hit_tokens + record.num_external_tokens);
  CountMisses(record);
  if (!record.is_resume) load_totals_.num_loaded_tokens += record.num_external_tokens;
}

void TierConnector::OnLoadFinished(const SimRequest& request, int64_t num_tokens, SimTime) {
  if (num_tokens == request.num_load_tokens) return;
  int64_t kept = 0;
  if (keeps_parts_ && !fails_lost_) {
    const int64_t end = request.num_load_hits + num_tokens;
    kept =
        std::max<int64_t>(end - end % manager_->group(0).block_size() - request.num_load_hits, 0);
  }
  const int64_t lost = request.num_load_tokens - kept;
  ++load_totals_.num_failed;
  load_totals_.num_lost_tokens += lost;
  if (!request.was_preempted()) load_totals_.num_loaded_tokens -= lost;
}

void TierConnector::CountMisses(const AdmissionRecord& record) {
  if (options_.leave_out_misses) return;
  const PrefixContent& content = record.request->kv->content();
  const int64_t begin = record.num_hit_tokens + record.num_external_tokens;
  const int64_t end = record.num_queried_tokens - 1;
  const int64_t block_size = manager_->group(lead_group_).block_size();
  const int64_t per_block = block_size / manager_->hash_block_size();
  for (TierId t = 0; t < offload_->num_tiers(); ++t) {
    const offload::Tier& tier = offload_->tier(t);
    const int64_t per_chunk = tier.options().blocks_per_chunk;
    TierLookup& lookup = last_lookup_[static_cast<size_t>(t)];
    if (record.num_external_tokens == 0) lookup.loaded_tokens = 0;
    lookup.missed_tokens = {};
    for (int64_t p = begin / block_size; (p + 1) * block_size <= end; ++p) {
      const int64_t chunk = p / per_chunk;
      TierMiss miss = TierMiss::kNeverStored;
      if ((chunk + 1) * per_chunk * per_block <= static_cast<int64_t>(content.hashes().size())) {
        const offload::ChunkKey key = {.hash = content.HashOfBlock(chunk, per_chunk * per_block),
                                       .group = lead_group_};
        const offload::SlotId slot = tier.Find(key);
        if (slot != offload::kNoSlot) {
          miss = tier.IsReadable(slot) ? TierMiss::kNotLoaded : TierMiss::kBeingWritten;
        } else if (states_[static_cast<size_t>(t)]->written.contains(key.Mixed())) {
          miss = TierMiss::kEvicted;
        }
      }
      lookup.missed_tokens[static_cast<size_t>(miss)] += block_size;
    }
  }
}

}  // namespace kvblocks::sim
