// NaiveEngine: who goes first where that depends on what the pool holds (SM-29).

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/engine/waiting_queue.h"
#include "sim/testing/naive_engine.h"

namespace kvblocks::sim {

void NaiveEngine::Sort() {
  const auto by = [&](auto key) {
    std::sort(waiting_.begin(), waiting_.end(), [&](const NaiveRequest* a, const NaiveRequest* b) {
      return std::tuple(key(*a), a->arrival, a->row) < std::tuple(key(*b), b->arrival, b->row);
    });
  };
  switch (o_.policy) {
    case SchedulingPolicy::kFcfs:
    case SchedulingPolicy::kNoEvict:
      return;
    case SchedulingPolicy::kPriority:
      return by([](const NaiveRequest& r) { return r.priority; });
    case SchedulingPolicy::kShortestPrompt:
      return by([](const NaiveRequest& r) { return r.prompt; });
    case SchedulingPolicy::kLongestOutput:
      return by([](const NaiveRequest& r) { return -r.output; });
    case SchedulingPolicy::kRandom:
      return by([&](const NaiveRequest& r) { return RandomQueueKey(r.row, o_.policy_seed); });
    case SchedulingPolicy::kLongestPrefix:
    case SchedulingPolicy::kPrefixTree:
      return by([](const NaiveRequest&) { return 0; });
  }
}

size_t NaiveEngine::BlocksHit(const NaiveRequest& r) const {
  size_t count = 0;
  const auto most = (r.tokens.size() - 1) / static_cast<size_t>(o_.block_size);
  while (count < most && table_.count(KeyOf(r, static_cast<int64_t>(count)))) ++count;
  return count;
}

void NaiveEngine::SortByHits() {
  if (OrdersByPrefix(o_.policy)) Sort();
  if (o_.policy == SchedulingPolicy::kLongestPrefix && waiting_.size() <= 128) {
    SortByLongestPrefix();
  }
  if (o_.policy == SchedulingPolicy::kPrefixTree) SortByPrefixTree();
}

void NaiveEngine::SortByLongestPrefix() {
  const size_t block_size = static_cast<size_t>(o_.block_size);
  const size_t beginning = (32 + block_size - 1) / block_size * block_size;
  std::vector<std::vector<int64_t>> beginnings;
  std::map<const NaiveRequest*, int64_t> keys;
  for (const NaiveRequest* r : waiting_) {
    const size_t hits = BlocksHit(*r) * block_size;
    keys[r] = -static_cast<int64_t>(hits);
    if (hits > 32 || r->tokens.size() < beginning) continue;
    const std::vector<int64_t> own(r->tokens.begin(),
                                   r->tokens.begin() + static_cast<int64_t>(beginning));
    if (std::find(beginnings.begin(), beginnings.end(), own) != beginnings.end()) keys[r] = 1;
    beginnings.push_back(own);
  }
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [&](const NaiveRequest* a, const NaiveRequest* b) { return keys[a] < keys[b]; });
}

// Child by child, as a tree is walked, and only then who is at home here.
void NaiveEngine::SortByPrefixTree() {
  const std::deque<NaiveRequest*> all = std::exchange(waiting_, {});
  std::map<const NaiveRequest*, size_t> hits;
  for (const NaiveRequest* r : all) hits[r] = BlocksHit(*r);
  const auto walk = [&](const auto& self, const std::vector<NaiveRequest*>& here,
                        size_t depth) -> void {
    std::vector<std::pair<Key, std::vector<NaiveRequest*>>> children;
    for (NaiveRequest* r : here) {
      if (hits[r] <= depth) continue;
      const Key key = KeyOf(*r, static_cast<int64_t>(depth));
      auto child = std::find_if(children.begin(), children.end(),
                                [&](const auto& c) { return c.first == key; });
      if (child == children.end()) child = children.insert(child, {key, {}});
      child->second.push_back(r);
    }
    std::stable_sort(children.begin(), children.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    for (const auto& [key, requests] : children) self(self, requests, depth + 1);
    for (NaiveRequest* r : here) {
      if (hits[r] == depth) waiting_.push_back(r);
    }
  };
  walk(walk, {all.begin(), all.end()}, 0);
}

int64_t NaiveEngine::LongestBlocks(const NaiveRequest& r) const {
  const int64_t longest = r.prompt + r.output;
  const int64_t reach =
      std::max(longest, longest - 1 + (o_.async ? 2 : 1) * o_.drafts + o_.lookahead);
  return (std::min(reach, o_.max_len) + o_.block_size - 1) / o_.block_size + EncoderBlocks(r);
}

bool NaiveEngine::HasReserve(const NaiveRequest& r) const {
  if (o_.policy != SchedulingPolicy::kNoEvict || (running_.empty() && holding_.empty())) return true;
  int64_t sum = LongestBlocks(r);
  for (const NaiveRequest* other : running_) sum += LongestBlocks(*other);
  for (const NaiveRequest* other : holding_) sum += LongestBlocks(*other);
  return sum <= o_.num_blocks - 1;
}

}  // namespace kvblocks::sim
