#include "kvblocks/kv_events.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"

namespace kvblocks::events {
namespace {

std::string Name(const BlockHash& hash, GroupId group) {
  // An integer stands in the last word.
  const std::string hex = hash.ToHex();
  const bool is_integer = (hash.words[0] | hash.words[1] | hash.words[2]) == 0;
  return absl::StrCat(is_integer ? hex.substr(48) : hex.substr(0, 16), " of group ", group);
}

uint64_t Brief(const BlockHash& hash) { return hash.words[0] ^ hash.words[3]; }

}  // namespace

HolderId StreamCheck::AddStream(std::string name) {
  streams_.emplace_back();
  return index_.AddHolder(std::move(name));
}

void StreamCheck::OnLoss(HolderId id) {
  index_.Forget(id);
  streams_[Place(id)].lost = true;
}

void StreamCheck::OnRestart(HolderId id) {
  index_.Forget(id);
  streams_[Place(id)].lost = false;
}

void StreamCheck::Problem(Stream& stream, int64_t& count, const std::string& what) {
  ++count;
  if (stream.totals.first_problem.empty()) {
    stream.totals.first_problem =
        absl::StrCat("batch ", stream.totals.num_batches, " from the first seen: ", what);
  }
}

void StreamCheck::Apply(HolderId id, const EventBatch& batch) {
  Stream& stream = streams_[Place(id)];
  Totals& totals = stream.totals;
  if (totals.num_batches == 0) {
    totals.first_time = batch.timestamp;
  } else if (batch.timestamp < totals.last_time) {
    ++totals.num_times_backwards;
  }
  totals.last_time = batch.timestamp;
  totals.num_events += static_cast<int64_t>(batch.events.size());
  totals.num_unknown_extra_keys += batch.num_unknown_extra_keys;
  for (const KvEvent& event : batch.events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      Stored(id, *stored);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      Removed(id, *removed);
    } else {
      ++totals.num_cleared;
      stream.lost = false;  // whatever was missed, it is gone
    }
    index_.Apply(id, absl::MakeConstSpan(&event, 1));
  }
  ++totals.num_batches;
}

void StreamCheck::Stored(HolderId id, const BlockStored& stored) {
  Stream& stream = streams_[Place(id)];
  Totals& totals = stream.totals;
  const size_t num_hashes = stored.block_hashes.size();
  if (!medium_.empty() && stored.medium != medium_) {
    totals.num_other_media += static_cast<int64_t>(num_hashes);
    return;
  }
  ++totals.num_stored_events;
  totals.num_stored += static_cast<int64_t>(num_hashes);
  totals.num_tokens += static_cast<int64_t>(stored.token_ids.size());
  const auto check_list = [&](const char* name, size_t size, bool is_there, bool fits) {
    if (!is_there || fits) return;
    Problem(stream, totals.num_unequal_lists,
            absl::StrCat(size, " ", name, " for ", num_hashes, " hashes of ", stored.block_size,
                         " tokens"));
  };
  check_list("extra_keys", stored.extra_keys.size(), !stored.extra_keys.empty(),
             stored.extra_keys.size() == num_hashes);
  if (stored.lookahead_token_ids) {
    check_list("lookahead_token_ids", stored.lookahead_token_ids->size(), true,
               stored.lookahead_token_ids->size() == num_hashes);
  }
  // Where an event spans positions that were not kept it has more tokens than its hashes (V-61).
  const auto block_size = static_cast<size_t>(std::max<int64_t>(stored.block_size, 1));
  const size_t num_tokens = stored.token_ids.size();
  check_list("token_ids", num_tokens, num_tokens > 0,
             num_tokens / block_size >= num_hashes && num_tokens % block_size == 0);
  // With the tokens of all hashes and no others, each hash continues the one before.
  const bool is_chain = num_tokens > 0 && num_tokens == num_hashes * block_size;
  if (stored.parent_block_hash && !seen_.contains({*stored.parent_block_hash, stored.group_idx})) {
    ++totals.num_unknown_parents;
  }
  uint64_t parent = stored.parent_block_hash ? Brief(*stored.parent_block_hash) : 0;
  const uint64_t bit = id < 64 ? uint64_t{1} << id : 0;
  for (size_t i = 0; i < num_hashes; ++i) {
    const BlockHash& hash = stored.block_hashes[i];
    const BlockIndex::Key key{hash, stored.group_idx};
    Seen& seen = seen_[key];
    const absl::Span<const BlockIndex::Holding> holdings = index_.Holders(key);
    bool held_here = false;
    for (const auto& holding : holdings) held_here |= holding.holder == id;
    if (held_here) {
      ++totals.num_held_here;
    } else if (!holdings.empty()) {
      ++totals.num_held_elsewhere;
    } else if ((seen.streams & bit) != 0) {
      ++totals.num_lost_before;
    } else {
      ++totals.num_first_seen;
    }
    seen.streams |= bit;
    if (is_chain && seen.parent == Seen::kUnknownParent) seen.parent = parent;
    if (is_chain && seen.parent != parent) {
      Problem(stream, totals.num_two_parents,
              absl::StrCat(Name(hash, stored.group_idx), " was stored behind another hash before"));
    }
    parent = Brief(hash);
  }
}

void StreamCheck::Removed(HolderId id, const BlockRemoved& removed) {
  Stream& stream = streams_[Place(id)];
  Totals& totals = stream.totals;
  if (!medium_.empty() && removed.medium != medium_) {
    ++totals.num_other_media;
    return;
  }
  ++totals.num_removed;
  for (const auto& holding : index_.Holders({removed.block_hash, removed.group_idx})) {
    if (holding.holder == id) return;
  }
  if (stream.lost) {
    ++totals.num_removals_after_loss;
    return;
  }
  Problem(stream, totals.num_unknown_removals,
          absl::StrCat(Name(removed.block_hash, removed.group_idx),
                       " was removed and had not been stored"));
}

}  // namespace kvblocks::events
