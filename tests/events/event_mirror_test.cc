// A consumer that sees nothing but the events must know, after every call, exactly which keys the
// pool holds and how often, and which content each hash continues.

#include "kvblocks/tests/events/event_mirror.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/block_pool/block_hash.h"
#include "kvblocks/block_pool/prefix_content.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/tests/group_specs.h"

namespace kvblocks::testing {
namespace {

struct Setting {
  std::string name;
  std::vector<KvCacheSpec> specs;
  int64_t num_blocks = 0;
  bool use_eagle = false;
  FreeOrder free_order = FreeOrder::kUnhashedFirst;
  HashAlgorithm algorithm = HashAlgorithm::kSha256;
};

std::vector<Setting> Settings() {
  return {
      {"Full", {Full(4)}, 25},
      {"FullAppendAllXxh3", {Full(4)}, 25, false, FreeOrder::kAppendAll, HashAlgorithm::kXxh3_128},
      {"FullCbor", {Full(4)}, 25, false, FreeOrder::kUnhashedFirst, HashAlgorithm::kSha256Cbor},
      {"Window", {Window(4, 10)}, 20},
      {"WindowEagle", {Window(4, 10)}, 20, true},
      {"Chunked", {Chunked(4, 8)}, 20},
      {"FullAndWindow", {Full(8), Window(4, 9)}, 40},
      {"FullAndWindowEagle", {Full(8), Window(4, 9)}, 40, true, FreeOrder::kAppendAll},
      {"SinkWindowAndMla", {Sink(4, 4), WindowMla(4, 6), Mla(8)}, 60},
  };
}

class EventRun {
 public:
  EventRun(const Setting& setting, uint64_t seed) : random_(seed) {
    KvCacheConfig config{.num_blocks = setting.num_blocks};
    for (const KvCacheSpec& spec : setting.specs) config.groups.push_back({.spec = spec});
    KvCacheManagerOptions options;
    options.max_model_len = 120;
    options.use_eagle = setting.use_eagle;
    if (seed % 2 == 0) options.semantics.retention_interval = std::nullopt;
    options.enable_events = true;
    options.free_order = setting.free_order;
    options.hash_algorithm = setting.algorithm;
    options.hash_seed = "seed";
    auto manager = KvCacheManager::Create(config, options);
    EXPECT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
  }

  // Runs one call on the manager and looks at its events.
  void Step() {
    const int64_t evictions = manager_->pool().num_evictions();
    acting_ = nullptr;
    may_evict_ = false;
    Call();
    const std::vector<KvEvent> events = manager_->TakeEvents();
    EXPECT_TRUE(manager_->TakeEvents().empty()) << "every event is told once";
    int64_t reused = 0;
    for (const KvEvent& event : events) {
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        ++num_stored_;
        CheckStored(*stored);
      } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
        ++num_removed_;
        reused += removed->reason == RemovalReason::kReused;
        EXPECT_TRUE(removed->reason == RemovalReason::kReused || may_evict_);
      } else {
        ++num_cleared_;
      }
    }
    EXPECT_EQ(reused, manager_->pool().num_evictions() - evictions);
    absl::Status status =
        mirror_.Apply(events, [this](const BlockStored& child) { return ParentIsAbsent(child); });
    ASSERT_TRUE(status.ok()) << status;
    status = mirror_.CompareWith(manager_->pool());
    ASSERT_TRUE(status.ok()) << status;
    CheckChains();
  }

  int64_t num_stored() const { return num_stored_; }
  int64_t num_removed() const { return num_removed_; }
  int64_t num_cleared() const { return num_cleared_; }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  void Call() {
    const uint64_t kind = Below(20);
    if (requests_.empty() || (kind < 3 && requests_.size() < 6)) return NewRequest();
    Request& request = *requests_[Below(requests_.size())];
    if (kind < 13) return Schedule(request);
    if (kind < 15) {  // finished
      return std::erase_if(requests_, [&](const auto& r) { return r.get() == &request; }), void();
    }
    if (kind == 15) {  // preempted
      ASSERT_TRUE(manager_->Free(request).ok());
      request.MarkPreempted();
    } else if (kind == 16) {
      may_evict_ = true;
      std::vector<BlockId> ids;
      for (int i = 0; i < 3; ++i) {
        ids.push_back(static_cast<BlockId>(Below(manager_->pool().num_blocks())));
      }
      ASSERT_TRUE(manager_->EvictBlocks(ids).ok());
    } else if (kind == 17) {
      if (Below(3) == 0) requests_.clear();
      manager_->ResetPrefixCache();
    } else if (kind == 18) {
      ASSERT_TRUE(manager_->RemoveSkippedBlocks(request, request.num_computed_tokens()).ok());
    } else if (manager_->HoldsBlocks(request)) {  // a delayed load has completed
      acting_ = &request;
      const int64_t n = std::min(request.num_tokens(), request.num_computed_tokens());
      ASSERT_TRUE(manager_->CacheBlocks(request, n).ok());
    }
  }

  void NewRequest() {
    KvCacheManager::RequestOptions options{.id = "r" + std::to_string(num_created_++)};
    // A few documents, so that prefixes are shared; some go on differently.
    const TokenId document = static_cast<TokenId>(Below(3));
    const size_t length = 1 + Below(70);
    for (size_t i = 0; i < length; ++i) {
      options.content.token_ids.push_back(1000 * document + static_cast<TokenId>(i));
    }
    if (Below(3) == 0) options.content.token_ids[Below(length)] = -1;
    if (Below(6) == 0) options.content.cache_salt = "salt";
    if (Below(6) == 0) options.content.lora_name = "adapter";
    if (Below(6) == 0) options.content.features = {{"image", 2, 9}};
    auto request = manager_->NewRequest(std::move(options));
    ASSERT_TRUE(request.ok()) << request.status();
    requests_.push_back(*std::move(request));
  }

  void Schedule(Request& request) {
    acting_ = &request;
    ComputedBlocks hits;
    AllocateSlotsParams params;
    if (!manager_->HoldsBlocks(request)) {
      ASSERT_TRUE(manager_->GetComputedBlocks(request, hits).ok());
      params.computed_blocks = &hits;
      params.delay_cache_blocks = Below(5) == 0;
    } else if (request.num_computed_tokens() >= request.num_tokens()) {
      const std::vector<TokenId> tokens = {static_cast<TokenId>(Below(2))};
      ASSERT_TRUE(request.AppendOutputTokens(tokens).ok());
    }
    const int64_t computed = request.num_computed_tokens() + hits.num_tokens();
    const int64_t left = request.num_tokens() - computed;
    if (computed >= manager_->options().max_model_len) return;
    params.num_new_tokens = std::max<int64_t>(1, std::min<int64_t>(left, 1 + Below(40)));
    params.num_lookahead_tokens = static_cast<int64_t>(Below(3));
    const auto slots = manager_->AllocateSlots(request, params);
    ASSERT_TRUE(slots.ok()) << slots.status();
    if (!slots->has_value()) return;
    request.set_status(RequestStatus::kRunning);
    request.set_num_computed_tokens(computed + params.num_new_tokens);
  }

  int64_t HashesPerBlock(GroupId group) const {
    return manager_->group(group).block_size() / manager_->hash_block_size();
  }

  // Position of a hash in the acting request's content.
  std::optional<int64_t> PositionOf(const BlockHash& hash, GroupId group) const {
    if (acting_ == nullptr) return std::nullopt;
    const int64_t per_block = HashesPerBlock(group);
    const int64_t blocks = static_cast<int64_t>(acting_->content().hashes().size()) / per_block;
    for (int64_t i = 0; i < blocks; ++i) {
      if (acting_->content().HashOfBlock(i, per_block) == hash) return i;
    }
    return std::nullopt;
  }

  // The parent's position holds no block, or one that the group leaves out because no hit needs it.
  bool ParentIsAbsent(const BlockStored& child) const {
    const auto position = PositionOf(child.block_hashes.front(), child.group_idx);
    if (!position || *position == 0) return false;
    const auto table = manager_->GetBlocks(*acting_, child.group_idx);
    return table[static_cast<size_t>(*position - 1)] == kNullBlockId ||
           !manager_->group(child.group_idx).IsReachable(*position - 1) ||
           (manager_->options().semantics.retention_interval &&
            !manager_->group(child.group_idx)
                 .IsRetained(*position - 1,
                             {.num_prompt_tokens = acting_->num_prompt_tokens()}));
  }

  // What the event says is what the request holds, and a consumer can compute the hashes from it.
  void CheckStored(const BlockStored& stored) const {
    const auto position = PositionOf(stored.block_hashes.front(), stored.group_idx);
    ASSERT_TRUE(position.has_value()) << "stored by a request that does not have this content";
    const SingleTypeManager& group = manager_->group(stored.group_idx);
    EXPECT_EQ(stored.block_size, group.block_size());
    EXPECT_EQ(stored.parent_block_hash.has_value(), *position > 0);
    const auto& tokens = acting_->content().token_ids();
    const auto first = tokens.begin() + *position * stored.block_size;
    EXPECT_EQ(
        stored.token_ids,
        std::vector<TokenId>(first, first + static_cast<std::ptrdiff_t>(stored.token_ids.size())));
    if (HashesPerBlock(stored.group_idx) != 1) return;
    const BlockHasher& hasher = manager_->hashing()->hasher;
    BlockHash parent = stored.parent_block_hash.value_or(hasher.root());
    for (size_t i = 0; i < stored.block_hashes.size(); ++i) {
      std::optional<std::string> keys;
      if (const auto& list = stored.extra_keys[i]) {
        keys = hasher.uses_cbor() ? EncodeExtraKeysAsCbor(*list) : EncodeExtraKeys(*list);
      }
      absl::Span<const TokenId> lookahead;
      if (stored.lookahead_token_ids) lookahead = (*stored.lookahead_token_ids)[i];
      const size_t size = static_cast<size_t>(stored.block_size);
      parent = hasher.Hash(parent, absl::MakeConstSpan(stored.token_ids).subspan(i * size, size),
                           keys, lookahead);
      EXPECT_EQ(parent, stored.block_hashes[i]);
    }
  }

  void CheckChains() const {
    for (const auto& request : requests_) {
      for (GroupId g = 0; g < manager_->num_groups(); ++g) {
        const int64_t per_block = HashesPerBlock(g);
        const int64_t blocks = static_cast<int64_t>(request->content().hashes().size()) / per_block;
        for (int64_t i = 0; i < blocks; ++i) {
          const EventMirror::Key key(request->content().HashOfBlock(i, per_block).words, g);
          if (mirror_.counts().count(key) == 0) continue;
          std::optional<EventMirror::Words> parent;
          if (i > 0) parent = request->content().HashOfBlock(i - 1, per_block).words;
          EXPECT_EQ(mirror_.ParentOf(key), parent);
        }
      }
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<std::unique_ptr<Request>> requests_;
  EventMirror mirror_;
  const Request* acting_ = nullptr;
  bool may_evict_ = false;
  int num_created_ = 0;
  int64_t num_stored_ = 0, num_removed_ = 0, num_cleared_ = 0;
};

class EventStreamTest : public ::testing::TestWithParam<Setting> {};

INSTANTIATE_TEST_SUITE_P(Managers, EventStreamTest, ::testing::ValuesIn(Settings()),
                         [](const auto& instance) { return instance.param.name; });

TEST_P(EventStreamTest, RebuildsThePrefixTableAfterEveryCall) {
  int64_t stored = 0, removed = 0, cleared = 0;
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EventRun run(GetParam(), seed);
    for (int step = 0; step < 200; ++step) {
      run.Step();
      if (HasFailure()) return;
    }
    stored += run.num_stored();
    removed += run.num_removed();
    cleared += run.num_cleared();
  }
  // The runs are only worth something if all kinds of events occurred.
  EXPECT_GT(stored, 200);
  EXPECT_GT(removed, 100);
  EXPECT_GT(cleared, 5);
}

// The mirror itself must notice what it is there for.

KvEvent Stored(uint64_t hash, std::optional<uint64_t> parent, GroupId group = 0) {
  BlockStored stored;
  stored.block_hashes = {BlockHash{{hash}}};
  stored.extra_keys = {std::nullopt};
  if (parent) stored.parent_block_hash = BlockHash{{*parent}};
  stored.group_idx = group;
  return stored;
}

KvEvent Removed(uint64_t hash) {
  BlockRemoved removed;
  removed.block_hash = BlockHash{{hash}};
  return removed;
}

TEST(EventMirrorTest, RefusesARemovalOfWhatIsNotThere) {
  EventMirror mirror;
  EXPECT_TRUE(mirror.Apply(std::vector<KvEvent>{Stored(1, {}), Removed(1)}).ok());
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Removed(1)}).ok());
}

TEST(EventMirrorTest, RefusesAChildBeforeItsParent) {
  EventMirror mirror;
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Stored(2, 1), Stored(1, {})}).ok());
  EventMirror other;
  EXPECT_TRUE(other.Apply(std::vector<KvEvent>{Stored(1, {}), Stored(2, 1)}).ok());
  EXPECT_FALSE(other.Apply(std::vector<KvEvent>{Stored(3, 1, 1)}).ok()) << "of another group";
  EXPECT_FALSE(other.Apply(std::vector<KvEvent>{AllBlocksCleared(), Stored(2, 1)}).ok());
}

TEST(EventMirrorTest, RefusesTwoParents) {
  EventMirror mirror;
  const auto any = [](const BlockStored&) { return true; };
  EXPECT_FALSE(mirror.Apply(std::vector<KvEvent>{Stored(3, 1), Stored(3, 2)}, any).ok());
}

TEST(EventMirrorTest, ComparesBothWays) {
  const auto pool = BlockPool::Create({.num_blocks = 4});
  ASSERT_TRUE(pool.ok());
  EventMirror mirror;
  EXPECT_TRUE(mirror.CompareWith(**pool).ok());
  ASSERT_TRUE(mirror.Apply(std::vector<KvEvent>{Stored(1, {})}).ok());
  EXPECT_FALSE(mirror.CompareWith(**pool).ok()) << "a key that the pool does not hold";
}

}  // namespace
}  // namespace kvblocks::testing
