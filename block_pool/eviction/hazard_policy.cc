#include "block_pool/eviction/hazard_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "kvblocks/check.h"

namespace kvblocks {
namespace {

// Ages grow by this factor from 1/32 of the pool's size on, to about 20 times its size.
constexpr double kAgeFactor = 1.4;
constexpr double kFirstAge = 1.0 / 32;
// Requests whose waits, and reuses, weigh as much as what is believed beforehand. The blocks of a
// request wait together, so that hundreds of them are but one observation.
constexpr double kPriorWaits = 60;
constexpr double kPriorReuses = 2;
// Hits that may be lost to LRU of late, as a share of the pool, before the policy follows it.
constexpr double kAllowedLoss = 0.06;
// The same as a share of all references so far, for traces that are short against the pool.
constexpr double kAllowedShare = 0.005;
// In turnovers: how long it only learns at first; how long it follows LRU, from the first time to
// the longest; and how long it has to do well to begin anew.
constexpr int64_t kLearning = 4;
constexpr int64_t kFirstSpan = 4;
constexpr int64_t kLongestSpan = 64;
constexpr int64_t kRelapse = 16;
// Share of the newest request in the mean size of requests.
constexpr double kMeanShare = 1.0 / 64;
// The counts are halved in so many turnovers of the pool.
constexpr double kHalfLife = 200;
constexpr int64_t kSampledBlocks = 32768;
// A block that more cached blocks build upon is a shared prefix, not the end of a conversation.
constexpr int32_t kMostBranches = 7;
// Longest search for the place of a block in its queue.
constexpr int kMostSteps = 32;

// The best fit to y, weighted by w, that rises up to some place and falls from there on, by pooling
// neighbours that are in the wrong order.
template <size_t N>
void FitMonotone(const std::array<double, N>& y, const std::array<double, N>& w, size_t begin,
                 size_t end, bool rises, std::array<double, N>& fit, double& error) {
  struct Pool {
    double value, weight;
    size_t size;
  };
  std::array<Pool, N> pools;
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    Pool pool{y[i], w[i], 1};
    while (count > 0 && (rises ? pools[count - 1].value > pool.value
                               : pools[count - 1].value < pool.value)) {
      const Pool& last = pools[--count];
      pool.value = (pool.value * pool.weight + last.value * last.weight) /
                   (pool.weight + last.weight);
      pool.weight += last.weight;
      pool.size += last.size;
    }
    pools[count++] = pool;
  }
  size_t i = begin;
  for (size_t p = 0; p < count; ++p) {
    for (size_t k = 0; k < pools[p].size; ++k, ++i) {
      fit[i] = pools[p].value;
      error += w[i] * (y[i] - fit[i]) * (y[i] - fit[i]);
    }
  }
}

template <size_t N>
std::array<double, N> FitUnimodal(const std::array<double, N>& y, const std::array<double, N>& w) {
  std::array<double, N> best{};
  double least = 0;
  for (size_t mode = 0; mode < N; ++mode) {
    std::array<double, N> fit{};
    double error = 0;
    FitMonotone(y, w, 0, mode, /*rises=*/true, fit, error);
    FitMonotone(y, w, mode, N, /*rises=*/false, fit, error);
    if (mode > 0 && error >= least) continue;
    least = error;
    best = fit;
  }
  return best;
}

int TurnClass(int32_t turn) { return turn <= 4 ? turn - 1 : turn <= 8 ? 4 : 5; }
int GrowthClass(int64_t tokens) {
  return tokens < 512 ? 0 : tokens < 1536 ? 1 : tokens < 6144 ? 2 : 3;
}
int SharingClass(int32_t further_uses) {
  return further_uses <= 0 ? 0 : further_uses <= 2 ? 1 : further_uses <= 14 ? 2 : 3;
}

}  // namespace

HazardPolicy::HazardPolicy(int32_t num_blocks, const CachedPrefixes* children)
    : children_(children),
      capacity_(std::max(1, num_blocks - 1)),
      sample_mask_(std::bit_ceil(static_cast<uint64_t>(
                       (num_blocks + kSampledBlocks - 1) / kSampledBlocks)) -
                   1),
      blocks_(static_cast<size_t>(num_blocks)) {
  edges_[0] = 0;
  double edge = capacity_ * kFirstAge;
  for (size_t a = 1; a <= kAges; ++a, edge *= kAgeFactor) edges_[a] = edge;
  Clear();
}

int64_t HazardPolicy::BytesFor(int64_t num_blocks) {
  const int64_t waits = std::min(num_blocks, kSampledBlocks) * 20;
  return num_blocks * static_cast<int64_t>(sizeof(Block)) +
         waits * static_cast<int64_t>(sizeof(Wait) + 2 * (sizeof(uint64_t) + sizeof(Evicted) + 1));
}

void HazardPolicy::Clear() {
  std::fill(blocks_.begin(), blocks_.end(), Block{});
  queues_.fill({});
  filled_.fill(0);
  waits_.clear();
  evicted_.clear();
  first_wait_ = lru_begin_ = num_lru_ = 0;
  next_to_age_.fill(0);
  reuses_.fill({});
  exposure_.fill({});
  all_reuses_.fill(0);
  all_exposure_.fill(0);
  now_ = worth_at_ = 0;
  lru_span_ = kLearning * static_cast<int64_t>(capacity_);
  lru_until_ = lru_span_;
  lost_to_lru_ = 0;
  mean_blocks_ = 24;
  ComputeWorth();
}

int HazardPolicy::AgeOf(int64_t waited) const {
  const auto it = std::upper_bound(edges_.begin() + 1, edges_.end() - 1,
                                   static_cast<double>(waited));
  return static_cast<int>(it - edges_.begin()) - 1;
}

// --- Waits ---

void HazardPolicy::BeginWait(BlockId id) {
  Block& block = At(id);
  if (block.wait != kNone) CloseWait(block.wait);
  if (!IsSampled(block.key)) return;
  block.wait = end_of_waits();
  waits_.push_back({.began = now_,
                    .key = block.key,
                    .block = id,
                    .block_class = block.block_class,
                    .is_open = true});
  ++num_lru_;
  while (num_lru_ * static_cast<int64_t>(sample_mask_ + 1) > static_cast<int64_t>(capacity_)) {
    if (WaitAt(lru_begin_++).is_open) --num_lru_;
  }
}

void HazardPolicy::CloseWait(int64_t number) {
  Wait& wait = WaitAt(number);
  wait.is_open = false;
  if (number >= lru_begin_) --num_lru_;
  if (wait.block != kNullBlockId) At(wait.block).wait = kNone;
}

void HazardPolicy::EndWait(int64_t number, bool was_hit) {
  const Wait& wait = WaitAt(number);
  const double waited = static_cast<double>(now_ - wait.began);
  const auto age = static_cast<size_t>(AgeOf(now_ - wait.began));
  const auto c = static_cast<size_t>(wait.block_class);
  // What it waited at younger ages was counted when it outlived them.
  const double here = std::min(waited, edges_[age + 1]) - edges_[age];
  exposure_[c][age] += here;
  all_exposure_[age] += here;
  reuses_[c][age] += 1;
  all_reuses_[age] += 1;
  lost_to_lru_ += (number >= lru_begin_ ? 1 : 0) - (was_hit ? 1 : 0);
  CloseWait(number);
}

void HazardPolicy::AgeWaits() {
  for (size_t age = 0; age < kAges; ++age) {
    int64_t& next = next_to_age_[age];
    for (; next < end_of_waits(); ++next) {
      Wait& wait = WaitAt(next);
      if (static_cast<double>(now_ - wait.began) < edges_[age + 1]) break;
      if (!wait.is_open) continue;
      const double width = edges_[age + 1] - edges_[age];
      exposure_[static_cast<size_t>(wait.block_class)][age] += width;
      all_exposure_[age] += width;
      if (age + 1 < kAges) continue;
      if (wait.block == kNullBlockId) evicted_.erase(wait.key);
      CloseWait(next);
    }
  }
  while (first_wait_ < next_to_age_[kAges - 1] && first_wait_ < lru_begin_) {
    waits_.pop_front();
    ++first_wait_;
  }
}

// --- What the pool tells ---

void HazardPolicy::Insert(BlockId id, uint64_t key, int64_t num_tokens) {
  ++now_;
  Block& block = At(id);
  block = {.key = key, .num_tokens = static_cast<int32_t>(num_tokens)};
  const auto it = evicted_.find(key);
  if (it == evicted_.end()) return;
  block.turn = it->second.turn;
  block.uses = it->second.uses;
  EndWait(it->second.wait, /*was_hit=*/false);
  evicted_.erase(it);
}

void HazardPolicy::Hit(BlockId id) {
  ++now_;
  if (At(id).wait != kNone) EndWait(At(id).wait, /*was_hit=*/true);
}

void HazardPolicy::Release(absl::Span<const BlockId> deepest_first) {
  mean_blocks_ += (static_cast<double>(deepest_first.size()) - mean_blocks_) * kMeanShare;
  Tick();
  int64_t new_tokens = 0;
  BlockId last_known = kNullBlockId;  // where the request left what was seen before
  for (const BlockId id : deepest_first) {
    if (At(id).uses > 0) {
      last_known = id;
      break;
    }
    new_tokens += At(id).num_tokens;
  }
  int32_t turn = 1;
  const bool is_first_block = last_known == deepest_first.back();
  if (last_known != kNullBlockId && !is_first_block &&
      (children_ == nullptr || children_->NumChildren(last_known) <= kMostBranches)) {
    turn = At(last_known).turn + 1;
  }
  const int growth = GrowthClass(new_tokens);
  for (const BlockId id : deepest_first) {
    Block& block = At(id);
    ++block.uses;
    block.turn = turn;
    block.released = now_;
    block.block_class = static_cast<int16_t>(
        (TurnClass(turn) * kGrowths + growth) * kSharings + SharingClass(block.uses - turn));
    BeginWait(id);
  }
}

void HazardPolicy::Enter(BlockId id) {
  const Block& block = At(id);
  Link(id, block.block_class * kAges + AgeOf(now_ - block.released));
}

void HazardPolicy::Leave(BlockId id) {
  if (At(id).queue >= 0) Unlink(id);
}

void HazardPolicy::Remove(BlockId id, bool was_evicted) {
  Block& block = At(id);
  if (block.wait == kNone) return;
  if (was_evicted) {
    const auto old = evicted_.find(block.key);  // of another block with the same content
    if (old != evicted_.end()) CloseWait(old->second.wait);
    evicted_[block.key] = {.wait = block.wait, .turn = block.turn, .uses = block.uses};
    WaitAt(block.wait).block = kNullBlockId;
    block.wait = kNone;
  } else {
    CloseWait(block.wait);
  }
}

BlockId HazardPolicy::Victim() {
  if (follows_lru()) return kNullBlockId;
  for (size_t word = 0; word < filled_.size(); ++word) {
    if (filled_[word] == 0) continue;
    const size_t rank = word * 64 + static_cast<size_t>(std::countr_zero(filled_[word]));
    return queues_[static_cast<size_t>(queue_of_rank_[rank])].front;
  }
  return kNullBlockId;
}

// --- Queues of candidates ---

// Longest waiting first, but for a block that becomes a candidate late and has to look for its
// place: it may stand a little too early.
void HazardPolicy::Link(BlockId id, int queue_index) {
  Queue& queue = queues_[static_cast<size_t>(queue_index)];
  Block& block = At(id);
  BlockId before = kNullBlockId;
  if (queue.back != kNullBlockId && At(queue.back).released > block.released) {
    before = queue.front;
    for (int i = 0; i < kMostSteps && At(before).released < block.released; ++i) {
      before = At(before).next;
    }
  }
  block.queue = static_cast<int16_t>(queue_index);
  block.next = before;
  block.prev = before == kNullBlockId ? queue.back : At(before).prev;
  (block.prev == kNullBlockId ? queue.front : At(block.prev).next) = id;
  (before == kNullBlockId ? queue.back : At(before).prev) = id;
  const auto rank = static_cast<size_t>(rank_of_queue_[static_cast<size_t>(queue_index)]);
  filled_[rank / 64] |= uint64_t{1} << (rank % 64);
}

void HazardPolicy::Unlink(BlockId id) {
  Block& block = At(id);
  Queue& queue = queues_[static_cast<size_t>(block.queue)];
  (block.prev == kNullBlockId ? queue.front : At(block.prev).next) = block.next;
  (block.next == kNullBlockId ? queue.back : At(block.next).prev) = block.prev;
  if (queue.front == kNullBlockId) {
    const auto rank = static_cast<size_t>(rank_of_queue_[static_cast<size_t>(block.queue)]);
    filled_[rank / 64] &= ~(uint64_t{1} << (rank % 64));
  }
  block.queue = -1;
  block.prev = block.next = kNullBlockId;
}

void HazardPolicy::MoveAgedCandidates() {
  for (size_t q = 0; q < kQueues; ++q) {
    const size_t age = q % kAges;
    if (age + 1 == kAges) continue;
    while (queues_[q].front != kNullBlockId) {
      const BlockId id = queues_[q].front;
      if (static_cast<double>(now_ - At(id).released) < edges_[age + 1]) break;
      Unlink(id);
      Enter(id);
    }
  }
}

// --- Learning ---

void HazardPolicy::Tick() {
  AgeWaits();
  WatchLru();
  if (worth_at_ != 0 && static_cast<double>(now_ - worth_at_) < capacity_ / 8) return;
  const double elapsed =
      worth_at_ == 0 ? 0.0 : static_cast<double>(now_ - worth_at_) / capacity_;
  const double kept = std::exp2(-elapsed / kHalfLife);
  const auto fade = [kept](PerAge& values) {
    for (double& value : values) value *= kept;
  };
  for (PerAge& values : reuses_) fade(values);
  for (PerAge& values : exposure_) fade(values);
  fade(all_reuses_);
  fade(all_exposure_);
  lost_to_lru_ *= std::exp2(-elapsed / 2);
  worth_at_ = now_;
  ComputeWorth();
  MoveAgedCandidates();
}

void HazardPolicy::WatchLru() {
  if (follows_lru()) {
    lost_to_lru_ = 0;
    return;
  }
  const double allowed =
      std::min(kAllowedLoss * capacity_, kAllowedShare * static_cast<double>(now_)) /
      static_cast<double>(sample_mask_ + 1);
  if (lost_to_lru_ <= allowed) return;
  const auto turnover = static_cast<int64_t>(capacity_);
  const bool is_relapse = now_ - lru_until_ < kRelapse * turnover;
  lru_span_ = is_relapse ? std::min(2 * lru_span_, kLongestSpan * turnover) : kFirstSpan * turnover;
  lru_until_ = now_ + lru_span_;
}

void HazardPolicy::ComputeWorth() {
  std::array<double, kQueues> worth;
  PerAge shape, weight;
  const double per_request = mean_blocks_ / static_cast<double>(sample_mask_ + 1);
  const double prior_waits = kPriorWaits * per_request;
  const double prior_reuses = kPriorReuses * per_request;
  for (size_t age = 0; age < kAges; ++age) {
    // Where nothing was seen the hazard falls with age, as LRU has it.
    const double prior = age == 0 ? 1 / capacity_
                                  : shape[age - 1] * (edges_[age] + capacity_ / 4) /
                                        (edges_[age + 1] + capacity_ / 4);
    const double prior_exposure = (edges_[age + 1] - edges_[age]) * prior_waits;
    weight[age] = all_exposure_[age] + prior_exposure;
    shape[age] = (all_reuses_[age] + prior * prior_exposure) / weight[age];
  }
  shape = FitUnimodal(shape, weight);
  for (size_t c = 0; c < kClasses; ++c) {
    double seen = 0;
    double expected = 0;
    for (size_t age = 0; age < kAges; ++age) {
      seen += reuses_[c][age];
      expected += exposure_[c][age] * shape[age];
    }
    const double factor = (seen + prior_reuses) / (expected + prior_reuses);
    PerAge hazard;
    for (size_t age = 0; age < kAges; ++age) {
      const double prior_exposure = (edges_[age + 1] - edges_[age]) * prior_waits;
      hazard[age] = (reuses_[c][age] + factor * shape[age] * prior_exposure) /
                    (exposure_[c][age] + prior_exposure);
    }
    for (size_t age = 0; age < kAges; ++age) {
      double alive = 1, reused = 0, kept = 0, best = 0;
      for (size_t later = age; later < kAges; ++later) {
        const double width = edges_[later + 1] - edges_[later];
        const double ends = 1 - std::exp(-hazard[later] * width);
        reused += alive * ends;
        kept += hazard[later] > 0 ? alive * ends / hazard[later] : alive * width;
        alive *= 1 - ends;
        best = std::max(best, reused / kept);
      }
      worth[c * kAges + age] = best;
    }
  }
  for (size_t q = 0; q < kQueues; ++q) queue_of_rank_[q] = static_cast<int16_t>(q);
  std::sort(queue_of_rank_.begin(), queue_of_rank_.end(), [&worth](int16_t a, int16_t b) {
    const double left = worth[static_cast<size_t>(a)];
    const double right = worth[static_cast<size_t>(b)];
    return left != right ? left < right : a < b;
  });
  filled_.fill(0);
  for (size_t rank = 0; rank < kQueues; ++rank) {
    const auto q = static_cast<size_t>(queue_of_rank_[rank]);
    rank_of_queue_[q] = static_cast<int16_t>(rank);
    if (queues_[q].front != kNullBlockId) filled_[rank / 64] |= uint64_t{1} << (rank % 64);
  }
}

absl::Status HazardPolicy::CheckInvariants() const {
  for (size_t q = 0; q < kQueues; ++q) {
    const auto rank = static_cast<size_t>(rank_of_queue_[q]);
    const bool is_filled = (filled_[rank / 64] >> (rank % 64) & 1) != 0;
    if (is_filled != (queues_[q].front != kNullBlockId)) {
      return BrokenInvariant("hazard: queue ", q, " counts as ", is_filled ? "filled" : "empty");
    }
    BlockId last = kNullBlockId;
    size_t steps = 0;
    for (BlockId id = queues_[q].front; id != kNullBlockId; id = At(id).next) {
      if (At(id).queue != static_cast<int16_t>(q) || At(id).prev != last ||
          ++steps > blocks_.size()) {
        return BrokenInvariant("hazard: block ", id, " and queue ", q, " disagree");
      }
      last = id;
    }
    if (queues_[q].back != last) return BrokenInvariant("hazard: queue ", q, " has a wrong end");
  }
  int64_t open = 0;
  for (int64_t number = first_wait_; number < end_of_waits(); ++number) {
    const Wait& wait = waits_[static_cast<size_t>(number - first_wait_)];
    if (!wait.is_open) continue;
    open += number >= lru_begin_;
    const auto it = evicted_.find(wait.key);
    const int64_t known = wait.block != kNullBlockId ? At(wait.block).wait
                          : it == evicted_.end()     ? kNone
                                                     : it->second.wait;
    if (known != number) {
      return BrokenInvariant("hazard: wait ", number, " is open, its block knows of ", known);
    }
  }
  if (open != num_lru_) {
    return BrokenInvariant("hazard: LRU would hold ", open, " waiting blocks, counted ", num_lru_);
  }
  return absl::OkStatus();
}

}  // namespace kvblocks
