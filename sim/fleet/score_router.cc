// ScoreRouter: the routers that weigh what a replica holds of a prompt against its load.

#include <algorithm>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/events/block_index.h"
#include "kvblocks/sim/fleet/router.h"
#include "kvblocks/sim/gen/fixed_math.h"
#include "kvblocks/sim/gen/philox.h"

namespace kvblocks::sim {
namespace {

// SentBlocks: what a router without news of the caches guesses that one of them holds - the leading
// blocks of the prompts that it sent there, the least recently sent of which it forgets.
//
// Always: at most `capacity` blocks; with a block it knows all blocks before it, since a prompt's
// are renewed from the last to the first. Cost: 50 to 100 ns per block, 60 bytes each.
// Single-threaded.
class SentBlocks {
 public:
  // REQUIRES: capacity >= 1.
  explicit SentBlocks(int64_t capacity) : capacity_(capacity) {}

  // Leading blocks of `prompt` that it knows.
  int64_t Match(absl::Span<const BlockHash> prompt) const;
  // Of a prompt longer than the capacity, the first blocks.
  void Add(absl::Span<const BlockHash> prompt);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  int64_t capacity_;
  std::list<BlockHash> order_;  // most recently sent first
  absl::flat_hash_map<BlockHash, std::list<BlockHash>::iterator> places_;
};

int64_t SentBlocks::Match(absl::Span<const BlockHash> prompt) const {
  const auto missing = std::find_if(prompt.begin(), prompt.end(), [&](const BlockHash& block) {
    return !places_.contains(block);
  });
  return missing - prompt.begin();
}

void SentBlocks::Add(absl::Span<const BlockHash> prompt) {
  const size_t count = std::min(prompt.size(), static_cast<size_t>(capacity_));
  // From the last to the first: what goes first is a prompt's end.
  for (size_t i = count; i-- > 0;) {
    const auto [place, is_new] = places_.try_emplace(prompt[i]);
    if (is_new) {
      order_.push_front(prompt[i]);
    } else {
      order_.splice(order_.begin(), order_, place->second);
    }
    place->second = order_.begin();
  }
  while (size() > capacity_) {
    places_.erase(order_.back());
    order_.pop_back();
  }
}

class ScoreRouter final : public Router {
 public:
  // REQUIRES: UsesContent(options.kind).
  ScoreRouter(const RouterOptions& options, int32_t num_replicas, GroupId group);

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) override;
  void OnGone(int32_t replica) override;

 private:
  void Claim(const RouteQuestion& question);
  int32_t Best(const RouteQuestion& question) const;
  int32_t Drawn(const RouteQuestion& question);

  const RouterOptions options_;
  const GroupId group_;
  events::BlockIndex index_;        // of prefix; holders are replicas
  std::vector<SentBlocks> sent_;    // of prefix-approximate
  std::vector<int64_t> claimed_, scores_;
  // Scratch.
  std::vector<double> odds_;
  std::vector<int32_t> open_;  // whose they are
};

ScoreRouter::ScoreRouter(const RouterOptions& options, int32_t num_replicas, GroupId group)
    : options_(options),
      group_(group),
      claimed_(static_cast<size_t>(num_replicas)),
      scores_(static_cast<size_t>(num_replicas)) {
  for (int32_t r = 0; r < num_replicas; ++r) {
    index_.AddHolder(std::to_string(r));
    if (options.kind == RouterKind::kPrefixApproximate) sent_.emplace_back(options.tree_blocks);
  }
}

void ScoreRouter::OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) {
  if (options_.kind == RouterKind::kPrefix) index_.Apply(replica, events);
}

void ScoreRouter::OnGone(int32_t replica) {
  index_.Forget(replica);
  if (!sent_.empty()) sent_[static_cast<size_t>(replica)] = SentBlocks(options_.tree_blocks);
}

void ScoreRouter::Claim(const RouteQuestion& question) {
  std::fill(claimed_.begin(), claimed_.end(), 0);
  switch (options_.kind) {
    case RouterKind::kPrefix:
      for (const auto& match : index_.FindLongestPrefix(question.blocks, group_)) {
        claimed_[static_cast<size_t>(match.holder)] = match.num_blocks * question.block_tokens;
      }
      break;
    case RouterKind::kPrefixApproximate:
      for (size_t r = 0; r < sent_.size(); ++r) {
        claimed_[r] = sent_[r].Match(question.blocks) * question.block_tokens;
      }
      break;
    default:
      std::copy(question.tokens_held.begin(), question.tokens_held.end(), claimed_.begin());
  }
}

RouteAnswer ScoreRouter::Route(const RouteQuestion& question) {
  Claim(question);
  const auto in_blocks = [&](int64_t tokens) {
    return (tokens + question.block_tokens - 1) / question.block_tokens;
  };
  for (size_t r = 0; r < scores_.size(); ++r) {
    const ReplicaLoad& load = question.loads[r];
    scores_[r] = options_.hit_weight * (claimed_[r] / question.block_tokens) -
                 options_.load_weight * in_blocks(load.num_tokens) -
                 options_.queue_weight * in_blocks(load.num_waiting_tokens);
  }
  const int32_t replica = options_.temperature > 0 ? Drawn(question) : Best(question);
  if (!sent_.empty()) sent_[static_cast<size_t>(replica)].Add(question.blocks);
  return {.replica = replica, .claimed_tokens = claimed_, .scores = scores_};
}

int32_t ScoreRouter::Best(const RouteQuestion& question) const {
  size_t best = scores_.size();
  for (size_t r = 0; r < scores_.size(); ++r) {
    if (!MayHave(question, r)) continue;
    if (best == scores_.size() || scores_[r] > scores_[best] ||
        (scores_[r] == scores_[best] &&
         question.loads[r].num_tokens < question.loads[best].num_tokens)) {
      best = r;
    }
  }
  return static_cast<int32_t>(best);
}

int32_t ScoreRouter::Drawn(const RouteQuestion& question) {
  const int64_t highest = scores_[static_cast<size_t>(Best(question))];
  odds_.clear();
  open_.clear();
  double sum = 0;
  for (size_t r = 0; r < scores_.size(); ++r) {
    if (!MayHave(question, r)) continue;
    sum += FixedExp(static_cast<double>(scores_[r] - highest) /
                    static_cast<double>(options_.temperature));
    odds_.push_back(sum);
    open_.push_back(static_cast<int32_t>(r));
  }
  Draws draws(options_.seed, "router", static_cast<uint64_t>(question.request.spec.row));
  const double drawn = draws.Uniform() * sum;
  const auto place = std::upper_bound(odds_.begin(), odds_.end() - 1, drawn);
  return open_[static_cast<size_t>(place - odds_.begin())];
}

}  // namespace

std::unique_ptr<Router> MakeScoreRouter(const RouterOptions& options, int32_t num_replicas,
                                        GroupId group) {
  return std::make_unique<ScoreRouter>(options, num_replicas, group);
}

}  // namespace kvblocks::sim
