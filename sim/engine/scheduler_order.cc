// Scheduler: policies that choose among waiting requests by what the pool holds (SM-29).

#include <algorithm>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "kvblocks/block_pool/check.h"
#include "kvblocks/sim/engine/scheduler.h"

namespace kvblocks::sim {
namespace {

// Of SGLang's lpm. With more waiting requests it does not look anything up.
constexpr int64_t kMostLookedUp = 128;
// Who hits at most so many tokens may wait for another to fill the cache,
constexpr int64_t kSmallHit = 32;
// if the other begins with as many of its tokens, in whole blocks.
constexpr int64_t kSharedBeginning = 32;

}  // namespace

// Before requests are admitted. What is admitted in this step changes the order of the next.
void Scheduler::OrderWaiting() {
  if (!OrdersByPrefix(options_.policy) || waiting_.size() < 2) return;
  if (budget_ <= 0 || slot_budget_ <= options_.num_draft_slots || num_running() >= max_active_) {
    return;
  }
  waiting_.Reorder([&](absl::Span<SimRequest* const> requests) {
    if (options_.policy == SchedulingPolicy::kPrefixTree) {
      LookUpWaiting(requests);
      KeysByPrefixTree(requests);
    } else if (static_cast<int64_t>(requests.size()) <= kMostLookedUp) {
      LookUpWaiting(requests);
      KeysByLongestPrefix(requests);
    } else {
      for (SimRequest* request : requests) request->queue_key = 0;
    }
  });
}

// Sets queue_key to the tokens that each would hit, and paths_ to the hashes of their blocks.
void Scheduler::LookUpWaiting(absl::Span<SimRequest* const> requests) {
  paths_.clear();
  for (SimRequest* request : requests) {
    SyncContent(*request);
    const absl::Status status = manager_->GetComputedBlocks(*request->kv, hits_);
    KVBLOCKS_CHECK(status.ok(), status.ToString());
    request->queue_key = hits_.num_tokens();
    const auto num_blocks =
        static_cast<size_t>(hits_.num_tokens() / manager_->hash_block_size());
    paths_.push_back(request->kv->content().hashes().subspan(0, num_blocks));
  }
}

void Scheduler::KeysByLongestPrefix(absl::Span<SimRequest* const> requests) {
  const int64_t block_size = manager_->hash_block_size();
  const auto last = static_cast<size_t>((kSharedBeginning - 1) / block_size);
  absl::flat_hash_set<BlockHash> beginnings;
  for (SimRequest* request : requests) {
    const int64_t num_hits = request->queue_key;
    request->queue_key = -num_hits;
    const absl::Span<const BlockHash> hashes = request->kv->content().hashes();
    if (num_hits > kSmallHit || hashes.size() <= last) continue;
    if (!beginnings.insert(hashes[last]).second) {
      request->queue_key = std::numeric_limits<int64_t>::max();
    }
  }
}

void Scheduler::KeysByPrefixTree(absl::Span<SimRequest* const> requests) {
  struct Node {
    int64_t num_requests = 0;
    size_t first = 0;  // of them, by arrival
  };
  // A block's hash says what comes before it, so it names a node of the tree.
  absl::flat_hash_map<BlockHash, Node> tree;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (const BlockHash& hash : paths_[i]) {
      Node& node = tree.try_emplace(hash, Node{.first = i}).first->second;
      ++node.num_requests;
    }
  }
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto [at, bt] = std::mismatch(paths_[a].begin(), paths_[a].end(), paths_[b].begin(),
                                        paths_[b].end());
    const bool a_ends = at == paths_[a].end(), b_ends = bt == paths_[b].end();
    if (a_ends && b_ends) return a < b;
    if (a_ends || b_ends) return b_ends;
    const Node& left = tree.at(*at);
    const Node& right = tree.at(*bt);
    if (left.num_requests != right.num_requests) return left.num_requests > right.num_requests;
    return left.first < right.first;
  });
  for (size_t i = 0; i < order.size(); ++i) {
    requests[order[i]]->queue_key = static_cast<int64_t>(i);
  }
}

// --- Blocks that nobody else may need ---

bool Scheduler::HasReserve(const SimRequest& request) const {
  if (options_.policy != SchedulingPolicy::kNoEvict) return true;
  if (num_running() == 0 && holding_.empty()) return true;
  return num_reserved_ + LongestNumBlocks(request) <= num_usable_blocks_;
}

void Scheduler::Reserve(SimRequest& request) {
  if (options_.policy != SchedulingPolicy::kNoEvict || request.num_reserved > 0) return;
  request.num_reserved = LongestNumBlocks(request);
  num_reserved_ += request.num_reserved;
}

void Scheduler::Unreserve(SimRequest& request) {
  num_reserved_ -= request.num_reserved;
  request.num_reserved = 0;
}

}  // namespace kvblocks::sim
