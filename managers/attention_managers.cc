// The managers of groups whose layers attend to rows of keys and values, and which manager a spec
// gets.

#include <mutex>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/single_type_manager.h"

namespace kvblocks {
namespace {

// Groups whose tokens all stay needed until the request ends - full attention, MLA (which differs
// in bytes only) and full attention with permanent sink blocks. Nothing is trimmed and there is no
// admission cap.
class FullAttentionManager final : public SingleTypeManager {
 public:
  FullAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool,
                       std::vector<BlockId> sink_blocks)
      : SingleTypeManager(spec, options, pool, {.is_full_type = true}) {
    sink_blocks_ = std::move(sink_blocks);
  }

  // Left to right to the first miss: O(hit + 1) probes.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
    int64_t matched = block_size_.FloorDiv(query.max_tokens);
    for (GroupId g : query.groups) {
      // Written behind the list's old end too, so it is as long as the run may get; capacity stays.
      std::vector<BlockId>& list = lists[static_cast<size_t>(g)];
      list.resize(static_cast<size_t>(matched));
      matched = static_cast<int64_t>(
          pool_->FindCachedRun(*query.content, 0, hashes_per_block_, g, absl::MakeSpan(list)));
    }
    int64_t hit = matched * block_size();
    if (has_inner_boundaries_) hit += FindTail(query, matched, lists);
    if (query.drop_last_block && hit > 0) hit -= drop_unit();
    hit -= hit % query.alignment;
    for (GroupId g : query.groups) {
      lists[static_cast<size_t>(g)].resize(static_cast<size_t>(block_size_.CeilDiv(hit)));
    }
    return hit;
  }

  // Copies are made before the step computes anything.
  bool MayUseHits(absl::Span<const BlockId> hits, int64_t num_tokens) const override {
    return hits.empty() || options_.semantics.trusts_hits ||
           static_cast<int64_t>(hits.size()) * block_size() <= num_tokens ||
           !registered_in_step_.contains(hits.back());
  }

 protected:
  int64_t NumUnneededTokensImpl(int64_t) const override { return 0; }
  void CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                       const ReuseBoundaries& boundaries) override {
    if (has_inner_boundaries_) {
      registered_in_step_.insert(held.table.begin() + held.num_cached, held.table.begin() + full);
    }
    SingleTypeManager::CacheFullBlocks(content, held, full, boundaries);
  }
  void OnTailRegistered(GroupBlocks&, BlockId id, int64_t) override {
    if (has_inner_boundaries_) registered_in_step_.insert(id);
  }

 private:
  // How many tokens of the block behind the first `position` are cached as the end of a shorter
  // prefix; appends that block to the lists if any are.
  int64_t FindTail(const LookupQuery& query, int64_t position, HitLists& lists) const {
    const int64_t unit = options_.hash_block_size;
    const int64_t begin = position * hashes_per_block_;
    found_.resize(query.groups.size());
    for (int64_t end = std::min(begin + hashes_per_block_ - 1, query.max_tokens / unit);
         end > begin; --end) {
      if (!FindTailInAllGroups(query, end * unit, found_.data())) continue;
      for (size_t i = 0; i < found_.size(); ++i) {
        std::vector<BlockId>& list = lists[static_cast<size_t>(query.groups[i])];
        list.resize(static_cast<size_t>(position));
        list.push_back(found_[i]);
      }
      return (end - begin) * unit;
    }
    return 0;
  }
};

// Groups where query i sees tokens [i - W + 1, i] - sliding window and sliding-window MLA. A block
// table is nulls, then the blocks still inside the window. A hit is the right-most reusable window:
// the longest prefix whose last W - 1 tokens are cached, whatever lies before them.
class SlidingWindowManager final : public SingleTypeManager {
 public:
  SlidingWindowManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : SingleTypeManager(spec, options, pool, {.num_kept_tokens = spec.extra_retained_tokens()}),
        window_(spec.sliding_window().value()),
        tail_blocks_(std::max<int64_t>(options.semantics.is_025 ? 1 : 0,
                                       block_size_.CeilDiv(window_ - 1))),
        keeps_nothing_(tail_blocks_ == 0 && !options.is_draft) {}

  // Probes each position at most once: a miss rules out every hit whose window contains it. At most
  // as many probes as the window has blocks when the tail is cached; about one per window when
  // nothing is.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override;

 protected:
  int64_t NumUnneededTokensImpl(int64_t n) const override {
    return std::max<int64_t>(0, n - window_ + 1);
  }
  int64_t NumTailBlocksNeeded() const override { return tail_blocks_; }
  void CacheFullBlocks(const PrefixContent& content, GroupBlocks& held, int64_t full,
                       const ReuseBoundaries& boundaries) override {
    if (!keeps_nothing_) {
      return SingleTypeManager::CacheFullBlocks(content, held, full, boundaries);
    }
    mask_.assign(static_cast<size_t>(full - held.num_cached), 0);
    pool_->CacheFullBlocks(content, held.table, held.num_cached, full, block_size(), group(),
                           mask_);
    held.num_cached = full;
  }

 private:
  // What the engine makes of a window of one token whose drop was verified: the last position at
  // which a hit may end and that is cached, with its block (V-104).
  int64_t FindLastBlock(const LookupQuery& query, HitLists& lists) const;

  const int64_t window_;
  // Blocks before a hit's end that hold its last W - 1 tokens; at least 1, but for a window of one
  // token as the engine has it, which finds what it drops and keeps nothing else.
  const int64_t tail_blocks_;
  const bool keeps_nothing_;
};

int64_t SlidingWindowManager::FindLastBlock(const LookupQuery& query, HitLists& lists) const {
  for (int64_t end = block_size_.FloorDiv(query.max_tokens); end > 0; --end) {
    if (end * block_size() % query.alignment != 0) continue;
    if (!FindInAllGroups(query, end - 1, hashes_per_block_, found_.data())) continue;
    for (size_t i = 0; i < query.groups.size(); ++i) {
      std::vector<BlockId>& list = lists[static_cast<size_t>(query.groups[i])];
      list.assign(static_cast<size_t>(end - 1), kNullBlockId);
      list.push_back(found_[i]);
    }
    return end * block_size();
  }
  return 0;
}

int64_t SlidingWindowManager::FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const {
  for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
  const int64_t num_groups = static_cast<int64_t>(query.groups.size());
  const int64_t margin = query.drop_last_block ? 1 : 0;
  if (keeps_nothing_) return 0;
  const int64_t num_positions = block_size_.FloorDiv(query.max_tokens);
  // A hit of `end` blocks needs positions [end - tail_blocks_, end + margin). Among those probed,
  // only the latest such span matters, so a ring of that width holds what was found, per group. It
  // never spans more positions than there are.
  const int64_t width = std::clamp<int64_t>(num_positions, 1, std::max<int64_t>(
                                                                 1, tail_blocks_ + margin));
  found_.resize(static_cast<size_t>(width * num_groups));
  const auto found_at = [&](int64_t position) {
    return &found_[static_cast<size_t>(position % width * num_groups)];
  };

  // The first of positions [begin, limit) that is missing.
  const auto probe = [&](int64_t begin, int64_t limit) {
    int64_t position = begin;
    if (num_groups > 1) {
      while (position < limit &&
             FindInAllGroups(query, position, hashes_per_block_, found_at(position))) {
        ++position;
      }
      return position;
    }
    while (position < limit) {
      const int64_t size = std::min(limit - position, width - position % width);
      const auto found = static_cast<int64_t>(
          pool_->FindCachedRun(*query.content, position, hashes_per_block_, query.groups[0],
                               {found_at(position), static_cast<size_t>(size)}));
      position += found;
      if (found < size) break;
    }
    return position;
  };

  if (tail_blocks_ + margin == 0) return FindLastBlock(query, lists);

  // end * block_size() is a multiple of the alignment iff end is one of this.
  const int64_t step = query.alignment / std::gcd(query.alignment, block_size());
  const auto aligned_down = [step](int64_t end) { return end > 0 ? end - end % step : 0; };

  int64_t end = aligned_down(num_positions - margin);
  int64_t known_from = num_positions;  // positions [known_from, end + margin) are cached
  while (end > 0) {
    const int64_t begin = std::max<int64_t>(0, end - tail_blocks_);
    const int64_t probe_end = std::min(known_from, end + margin);
    const int64_t position = probe(begin, probe_end);
    if (position == probe_end) {
      // A run from the first token that is shorter than the window.
      if (!options_.semantics.is_025 && margin > 0 && step > 1 && end < tail_blocks_) {
        end -= step;
      }
      for (int64_t i = 0; i < num_groups; ++i) {
        std::vector<BlockId>& list =
            lists[static_cast<size_t>(query.groups[static_cast<size_t>(i)])];
        list.assign(static_cast<size_t>(begin), kNullBlockId);
        for (int64_t p = begin; p < end; ++p) list.push_back(found_at(p)[i]);
      }
      return end * block_size();
    }
    // The miss lies in the window of every end in (position - margin, end]; what was found below it
    // stays known.
    known_from = begin;
    end = aligned_down(position - margin);
  }
  return 0;
}

// Groups where query i sees its own chunk of C tokens up to itself; chunks are disjoint. Nothing
// before the chunk of the first uncomputed token influences what comes, so a hit counts those
// positions as computed without a look-up and searches the last chunk only. A model of nothing but
// such layers reports hits on an empty cache.
class ChunkedLocalAttentionManager final : public SingleTypeManager {
 public:
  ChunkedLocalAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : SingleTypeManager(spec, options, pool, {.hits_unhashed_tokens = true}),
        chunk_(spec.attention_chunk_size().value()) {}

  // O(positions inside the last chunk) probes. REQUIRES: alignment == block_size(), no drop.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
    const int64_t begin = block_size_.FloorDiv(chunk_.RoundDown(query.max_tokens));
    const int64_t end = block_size_.FloorDiv(
        std::min(query.max_tokens, query.content->num_hashed_tokens()));
    for (GroupId g : query.groups) {
      lists[static_cast<size_t>(g)].assign(static_cast<size_t>(begin), kNullBlockId);
    }
    found_.resize(query.groups.size());
    int64_t position = begin;
    for (; position < end; ++position) {
      if (!FindInAllGroups(query, position, hashes_per_block_, found_.data())) break;
      for (size_t i = 0; i < found_.size(); ++i) {
        lists[static_cast<size_t>(query.groups[i])].push_back(found_[i]);
      }
    }
    return position * block_size();
  }

 protected:
  int64_t NumUnneededTokensImpl(int64_t n) const override { return chunk_.RoundDown(n); }

 private:
  const BlockSize chunk_;
};

// Groups whose blocks only their request uses: nothing is shared, registered or looked up.
class UnsharedManager : public SingleTypeManager {
 public:
  using SingleTypeManager::SingleTypeManager;

  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const final {
    for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
    return 0;
  }

 protected:
  int64_t NumUnneededTokensImpl(int64_t) const final { return 0; }
  void AllocateNewImpl(GroupBlocks& held, const SlotDemand& demand) final {
    held.num_new = NumNewBlocks(&held, static_cast<int64_t>(held.table.size()), demand, 0, false);
    if (held.num_new > 0) TakeBlocks(held.num_new, held.table);
  }
};

// Groups whose layers attend to the encoder. A request takes blocks for the encoder's tokens once,
// with its first allocation that names them, and keeps them to its end.
class CrossAttentionManager final : public UnsharedManager {
 public:
  CrossAttentionManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : UnsharedManager(spec, options, pool, {.has_own_layout = true, .can_drop = false}) {}

 protected:
  int64_t NumNewBlocks(const GroupBlocks*, int64_t size, const SlotDemand& demand, int64_t,
                       bool) const override {
    return std::max<int64_t>(0, block_size_.CeilDiv(demand.num_encoder_tokens) - size);
  }
};

// Groups that keep a ring of rows: one block from the first allocation to the end (V-46).
class RingManager final : public UnsharedManager {
 public:
  RingManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : UnsharedManager(spec, options, pool,
                        {.has_own_layout = true, .can_drop = false, .holds_one_block = true}) {}

 protected:
  int64_t NumNewBlocks(const GroupBlocks*, int64_t size, const SlotDemand&, int64_t,
                       bool) const override {
    return size == 0 ? 1 : 0;
  }
};

struct Factories {
  std::mutex mutex;
  absl::flat_hash_map<const KvCacheKind*, SingleTypeManager::Factory> of_kind;
};

Factories& TheFactories() {
  static Factories* const factories = new Factories;
  return *factories;
}

SingleTypeManager::Factory FactoryOf(const KvCacheKind* kind) {
  const std::lock_guard lock(TheFactories().mutex);
  const auto entry = TheFactories().of_kind.find(kind);
  return entry == TheFactories().of_kind.end() ? nullptr : entry->second;
}

}  // namespace

absl::Status SingleTypeManager::RegisterFactory(const KvCacheKind& kind, Factory factory) {
  const std::lock_guard lock(TheFactories().mutex);
  if (TheFactories().of_kind.try_emplace(&kind, std::move(factory)).second) return absl::OkStatus();
  return InvalidArgument("kind ", kind.name, ": got a second manager, expected one");
}

absl::StatusOr<std::unique_ptr<SingleTypeManager>> SingleTypeManager::Create(
    const KvCacheSpec& spec, const Options& options, BlockPool* pool) {
  if (const Factory own = FactoryOf(spec.registered_kind())) return own(spec, options, pool);
  using Pointer = std::unique_ptr<SingleTypeManager>;
  switch (spec.kind()) {
    case KvCacheSpecKind::kFullAttention:
    case KvCacheSpecKind::kMlaAttention:
    case KvCacheSpecKind::kSinkFullAttention:
    case KvCacheSpecKind::kHiddenState: {
      auto sinks = pool->TakePermanentBlocks(spec.sink_length() / spec.block_size(), options.group);
      if (!sinks.ok()) return sinks.status();
      return Pointer(
          std::make_unique<FullAttentionManager>(spec, options, pool, *std::move(sinks)));
    }
    case KvCacheSpecKind::kSlidingWindow:
    case KvCacheSpecKind::kSlidingWindowMla:
      return Pointer(std::make_unique<SlidingWindowManager>(spec, options, pool));
    case KvCacheSpecKind::kChunkedLocalAttention:
      return Pointer(std::make_unique<ChunkedLocalAttentionManager>(spec, options, pool));
    case KvCacheSpecKind::kMamba:
      return CreateForStates(spec, options, pool);
    case KvCacheSpecKind::kCrossAttention:
      return Pointer(std::make_unique<CrossAttentionManager>(spec, options, pool));
    case KvCacheSpecKind::kRing:
      return Pointer(std::make_unique<RingManager>(spec, options, pool));
    case KvCacheSpecKind::kEncoderOnlyAttention:
      break;
  }
  return InvalidArgument("group ", options.group, ": a spec kind without a block manager");
}

}  // namespace kvblocks
