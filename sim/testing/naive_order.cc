// NaiveEngine: who goes first where that depends on what the pool holds (SM-29).

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
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
  const int64_t reach = std::max(
      longest, longest - 1 + (o_.async ? 2 : 1) * o_.num_draft_tokens + o_.num_lookahead_tokens);
  return BlocksOf(std::min(reach, o_.max_len)) + EncoderBlocks(r);
}

bool NaiveEngine::HasReserve(const NaiveRequest& r) const {
  if (o_.policy != SchedulingPolicy::kNoEvict || (running_.empty() && holding_.empty()))
    return true;
  int64_t sum = LongestBlocks(r);
  for (const NaiveRequest* other : running_) sum += LongestBlocks(*other);
  for (const NaiveRequest* other : holding_) sum += LongestBlocks(*other);
  return sum <= o_.num_blocks - 1;
}

// NaiveEngine: KV from elsewhere.

NaiveEngine::Offer NaiveEngine::Ask(const NaiveRequest& r, int64_t hits) {
  const auto found = o_.script.find(r.row);
  if (found == o_.script.end()) return {};
  asked_.erase(r.row);
  if (now_ < found->second.ready_at) {
    asked_[r.row] = found->second.ready_at;
    return {.tokens = 0, .pending = true, .load = {}};
  }
  if (r.loads >= found->second.loads.size()) return {};
  const ScriptedLoad& load = found->second.loads[r.loads];
  const auto n = static_cast<int64_t>(r.tokens.size());
  const int64_t last = load.mode == LoadMode::kAsync ? n : n - 1;
  return {std::max<int64_t>(std::min(load.prefix, last) - hits, 0), false, load};
}

// Blocks that it lacks to be computed as far as it is known, with its next token and drafts.
int64_t NaiveEngine::StillNeeds(const NaiveRequest& r) const {
  auto slots = static_cast<int64_t>(r.tokens.size());
  if (o_.num_draft_tokens > 0) slots += 1 + o_.num_draft_tokens + o_.num_lookahead_tokens;
  slots = std::min(slots, o_.max_len);
  const int64_t blocks = BlocksOf(slots);
  return std::max<int64_t>(blocks - static_cast<int64_t>(r.table.size()), 0);
}

bool NaiveEngine::Load(NaiveRequest* r, const std::vector<int>& hits, const Offer& offer,
                       int64_t idle_hits) {
  const auto n = static_cast<int64_t>(r->tokens.size());
  const auto num_hits = static_cast<int64_t>(hits.size());
  const int64_t computed = num_hits * o_.block_size + offer.tokens;
  const auto need = [&](int64_t slots) {
    return std::max<int64_t>(BlocksOf(slots) - num_hits, 0) + idle_hits;
  };
  const int64_t spare = Spare();
  int64_t reserved = 0;
  if (o_.num_draft_tokens > 0) {
    reserved += BlocksOf(1 + o_.num_draft_tokens + o_.num_lookahead_tokens);
  }
  for (const NaiveRequest* other : holding_) reserved += StillNeeds(*other);
  for (const NaiveRequest* other : running_) {
    if (other->prefilling) reserved += StillNeeds(*other);
  }
  if (o_.reserve_full_isl && need(std::min(n, o_.max_len)) > spare) return false;
  if (need(computed) > spare - reserved) return false;

  waiting_.pop_front();
  r->deferred = true;
  TakeHits(r, hits);
  Grow(r, computed);
  ++r->loads;
  r->loading = r->unsettled = r->prefilling = true;
  r->load_number = load_numbers_++;
  r->load_end = now_ + offer.load.seconds;
  r->load_hits = num_hits * o_.block_size;
  r->load_tokens = offer.tokens;
  r->load_arrived =
      offer.load.arrived < 0 ? offer.tokens : std::min(offer.load.arrived, offer.tokens);
  num_external_ += offer.tokens;
  holding_.push_back(r);
  if (by_priority()) {
    std::stable_sort(holding_.begin(), holding_.end(), IsMoreUrgent);
  }
  loaded_.push_back(absl::StrCat(r->id, " ", num_hits > 0 ? absl::StrCat("h", r->load_hits) : "",
                                 "+", offer.tokens));
  return true;
}

int64_t NaiveEngine::NextEnd() const {
  std::vector<int64_t> times;
  for (const NaiveRequest* r : holding_) {
    if (r->loading) times.push_back(r->load_end);
  }
  for (const Kept& kept : kept_) times.push_back(kept.until);
  for (const auto& [row, time] : asked_) times.push_back(time);
  return times.empty() ? -1 : *std::min_element(times.begin(), times.end());
}

void NaiveEngine::EndLoads(int64_t now) {
  std::erase_if(holding_, [&](NaiveRequest* r) {
    const bool ends = r->loading && r->load_end <= now;
    r->loading = r->loading && !ends;
    if (!ends || o_.load_failure_policy == LoadFailurePolicy::kRecompute ||
        r->load_arrived == r->load_tokens)
      return false;
    num_lost_ += r->load_tokens;
    kept_.push_back({r->load_end, r->load_number, true, r->table});
    r->table.clear();
    r->ended = true;
    return true;
  });
  // Loads before holds, in the order in which they end.
  std::sort(kept_.begin(), kept_.end(), [](const Kept& a, const Kept& b) {
    return std::tuple(!a.is_load, a.until, a.number) < std::tuple(!b.is_load, b.until, b.number);
  });
  for (Kept& kept : kept_) {
    if (kept.until <= now) FreeTable(&kept.table);
  }
  std::erase_if(kept_, [&](const Kept& kept) { return kept.until <= now; });
  std::erase_if(asked_, [&](const auto& asked) { return asked.second <= now; });
}

bool NaiveEngine::Settle(NaiveRequest* r) {
  r->unsettled = false;
  int64_t computed = r->load_hits + r->load_arrived;
  if (r->load_arrived < r->load_tokens) {
    computed -= computed % o_.block_size;
    num_lost_ += r->load_hits + r->load_tokens - computed;
  }
  if (computed == 0) {
    FreeAll(r);
    r->prefilling = false;
    return false;
  }
  Register(r, computed);
  r->settled = std::min(computed, static_cast<int64_t>(r->tokens.size()) - 1);
  return true;
}

// Those that hold blocks; false: nobody else enters.
bool NaiveEngine::AdmitHolding(size_t num_walked) {
  const int64_t most = o_.max_num_active_seqs > 0 ? o_.max_num_active_seqs : o_.max_num_seqs;
  const std::deque<NaiveRequest*> holding = holding_;
  bool all_fit = true;
  for (NaiveRequest* r : holding) {
    if (budget_ <= 0 || slots_ <= o_.num_draft_slots ||
        static_cast<int64_t>(running_.size()) >= most) {
      return false;
    }
    if (r->loading) continue;
    if (r->unsettled && !Settle(r)) {
      holding_.erase(std::find(holding_.begin(), holding_.end(), r));
      waiting_.push_front(r);
      Sort();
      continue;
    }
    const auto n = static_cast<int64_t>(r->tokens.size());
    bool padded = false;
    const int64_t tokens = Part(*r, r->settled, num_walked, &padded);
    if (tokens == 0) return false;
    const int64_t slots = std::min(r->settled + tokens + o_.num_lookahead_tokens, o_.max_len);
    const auto held = static_cast<int64_t>(r->table.size());
    const auto blocks = [&](int64_t s) { return BlocksOf(s) - held; };
    const int64_t spare = Spare();
    const bool fits =
        std::max<int64_t>(blocks(slots), 0) <= spare &&
        (!o_.reserve_full_isl || std::max<int64_t>(blocks(std::min(n, o_.max_len)), 0) <= spare);
    if (!fits && !running_.empty()) return false;
    all_fit = all_fit && fits;
    if (!fits) continue;
    holding_.erase(std::find(holding_.begin(), holding_.end(), r));
    running_.push_back(r);
    r->deferred = false;
    const bool prefill = n - r->settled > 1;
    const std::string taken = Grow(r, slots);
    Register(r, std::min(r->settled + tokens, n));
    step_.push_back({r, tokens, padded ? tokens - 1 : 0, padded, prefill,
                     absl::StrCat(r->id, ":", tokens, " ", taken)});
    budget_ -= tokens;
    slots_ -= tokens + o_.num_draft_slots;
  }
  return all_fit;
}

}  // namespace kvblocks::sim
