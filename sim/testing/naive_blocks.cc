// NaiveEngine: blocks, the prefix table and what is retained.

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/cost/sim_time.h"
#include "sim/testing/naive_engine.h"

namespace kvblocks::sim {

// --- Blocks ---

NaiveEngine::Key NaiveEngine::KeyOf(const NaiveRequest& r, int64_t block) const {
  return Key(r.tokens.begin(), r.tokens.begin() + (block + 1) * o_.block_size);
}

int NaiveEngine::Take() {
  const auto place =
      o_.retention.empty() || !keys_.count(free_.front()) ? free_.begin() : Unretained();
  const int id = *place;
  free_.erase(place);
  if (const auto key = keys_.find(id); key != keys_.end()) {
    std::vector<int>& ids = table_[key->second];
    ids.erase(std::find(ids.begin(), ids.end(), id));
    if (ids.empty()) table_.erase(key->second);
    keys_.erase(key);
    parents_.erase(id);
    std::erase_if(parents_, [&](const auto& child) { return child.second == id; });
    retained_.erase(id);
  }
  references_[id] = 1;
  return id;
}

// The free block that goes when all are cached: nothing cached builds upon it, and it is the first
// that nobody retains, or else the lowest.
std::deque<int>::iterator NaiveEngine::Unretained() {
  const auto order = [&](int id) {
    const auto kept = retained_.find(id);
    return kept == retained_.end()
               ? std::tuple<int64_t, int64_t>(-1, -1)
               : std::tuple<int64_t, int64_t>(kept->second.priority, kept->second.number);
  };
  auto best = free_.end();
  for (auto place = free_.begin(); place != free_.end(); ++place) {
    const bool is_parent = std::any_of(parents_.begin(), parents_.end(),
                                       [&](const auto& child) { return child.second == *place; });
    if (is_parent || (best != free_.end() && order(*best) <= order(*place))) continue;
    best = place;
  }
  return best == free_.end() ? free_.begin() : best;
}

// --- Retention ---

void NaiveEngine::AdvanceTime(int64_t now) {
  now_ = now;
  std::erase_if(retained_, [&](const auto& kept) { return kept.second.expires <= now; });
}

void NaiveEngine::Retain(const NaiveRequest& r) {
  constexpr int64_t kForEver = int64_t{1} << 60;
  for (const RetentionRule& rule : o_.retention) {
    if (rule.kind == RetentionRule::Kind::kSession && r.session == 0) continue;
    auto tokens = static_cast<int64_t>(r.tokens.size());
    if (rule.kind == RetentionRule::Kind::kFirst) tokens = std::min(tokens, rule.tokens);
    std::vector<int> ids;
    for (int64_t b = 0; (b + 1) * o_.block_size <= tokens; ++b) {
      const auto found = table_.find(KeyOf(r, b));
      if (found == table_.end() || uses_[found->second.front()] < rule.uses) break;
      ids.push_back(found->second.front());
    }
    const int64_t before = last_retention_;
    last_retention_ += static_cast<int64_t>(ids.size());
    int64_t number = last_retention_;
    for (int id : ids) {
      if (!retained_.count(id) && static_cast<int64_t>(retained_.size()) >= o_.most_retained) {
        const auto lowest =
            std::min_element(retained_.begin(), retained_.end(), [](const auto& a, const auto& b) {
              return std::tie(a.second.priority, a.second.number) <
                     std::tie(b.second.priority, b.second.number);
            });
        if (lowest->second.priority > rule.priority || lowest->second.number > before) {
          ++num_retention_refused_;
          continue;
        }
        retained_.erase(lowest);
      }
      Retained& kept = retained_[id];
      kept.priority = std::max<int64_t>(kept.priority, rule.priority);
      kept.expires = std::max(kept.expires, rule.ttl ? now_ + *rule.ttl / kSecond : kForEver);
      kept.number = number--;
    }
  }
}

void NaiveEngine::FreeAll(NaiveRequest* r) {
  FreeTable(&r->table);
  FreeTable(&r->encoder_table);
}

void NaiveEngine::FreeTable(std::vector<int>* table) {
  std::vector<int> plain, keyed;
  for (auto id = table->rbegin(); id != table->rend(); ++id) {
    if (--references_[*id] > 0) continue;
    (keys_.count(*id) || o_.append_all ? keyed : plain).push_back(*id);
  }
  table->clear();
  free_.insert(free_.begin(), plain.begin(), plain.end());
  free_.insert(free_.end(), keyed.begin(), keyed.end());
}

void NaiveEngine::Register(NaiveRequest* r, int64_t upto) {
  if (!o_.caching) return;
  for (int64_t b = 0; (b + 1) * o_.block_size <= upto; ++b) {
    const int id = r->table[static_cast<size_t>(b)];
    if (keys_.count(id)) continue;
    keys_[id] = KeyOf(*r, b);
    table_[keys_[id]].push_back(id);
    uses_[id] = 1;
    if (b > 0) parents_[id] = r->table[static_cast<size_t>(b - 1)];
  }
}

int64_t NaiveEngine::EncoderBlocks(const NaiveRequest& r) const {
  return (r.encoder + o_.encoder_block_size - 1) / o_.encoder_block_size;
}

void NaiveEngine::TakeHits(NaiveRequest* r, const std::vector<int>& hits) {
  for (int id : hits) {
    if (references_[id]++ == 0) free_.erase(std::find(free_.begin(), free_.end(), id));
    ++uses_[id];
    num_retained_hits_ += static_cast<int64_t>(retained_.count(id));
  }
  r->table = hits;
}

// Takes blocks for `slots` slots; the text of the new ones.
std::string NaiveEngine::Grow(NaiveRequest* r, int64_t slots) {
  std::vector<int> taken;
  while (static_cast<int64_t>(r->table.size()) < BlocksOf(slots)) {
    taken.push_back(Take());
    r->table.push_back(taken.back());
  }
  return absl::StrCat("[", absl::StrJoin(taken, ","), "]");
}

}  // namespace kvblocks::sim
