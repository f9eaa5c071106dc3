#include "kvblocks/offload.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "managers/testing/test_models.h"
#include "offload/tier.h"

namespace kvblocks::offload {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Blocks of 4 tokens. One of a group of Full(4) has 4 x 1 x 8 x 2 x 2 = 128 bytes.
constexpr int64_t kBlockBytes = 128;

using List = std::vector<TierOptions>;

class Tiers {
 public:
  Tiers(std::vector<TierOptions> tiers, std::vector<KvCacheSpec> specs = {Full(4)},
        bool enable_events = false)
      : model_(Manager(1000, std::move(specs))) {
    auto made = OffloadManager::Create(
        *model_, {.tiers = std::move(tiers), .enable_events = enable_events});
    EXPECT_TRUE(made.ok()) << made.status();
    manager_ = *std::move(made);
  }
  ~Tiers() { EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants(); }

  OffloadManager* operator->() { return manager_.get(); }
  const KvCacheManager& model() const { return *model_; }
  // Tokens first, first + 1, ...
  PrefixContent Content(int64_t num_tokens, TokenId first = 0) const {
    return PrefixContent::FromTokens({.token_ids = Tokens(num_tokens, first)}, model_->hashing())
        .value();
  }
  StorePlan Prepare(const PrefixContent& content, int64_t end, int64_t begin = 0) {
    return manager_->PrepareStore(1, content, {.begin = begin, .end = end}).value();
  }
  StorePlan Store(const PrefixContent& content, int64_t end = -1, int64_t begin = 0) {
    StorePlan plan = Prepare(content, end < 0 ? content.num_tokens() : end, begin);
    if (plan.ticket != 0) {
      EXPECT_TRUE(manager_->CompleteStore(plan.ticket).ok());
    }
    return plan;
  }
  int64_t Found(const PrefixContent& content, int64_t computed = 0) const {
    return manager_->Lookup(content, computed, content.num_tokens() - 1).num_tokens;
  }
  LoadPlan Load(const PrefixContent& content, int64_t end, int64_t computed = 0) {
    auto plan = manager_->PrepareLoad(2, content, computed, end);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

 private:
  std::unique_ptr<KvCacheManager> model_;
  std::unique_ptr<OffloadManager> manager_;
};

// The second device's manager reads what the first one's wrote, and neither ends the other's
// tickets.
TEST(OffloadManagerTest, ManagersCanShareATier) {
  Tiers first(List{{.capacity_slots = 4}});
  const auto second =
      OffloadManager::Create(first.model(), {.tiers = {{.name = "near", .capacity_slots = 2},
                                                       {.name = "host", .capacity_slots = 4}},
                                             .shared = {nullptr, first->shared_tier(0)}});
  ASSERT_TRUE(second.ok()) << second.status();
  const PrefixContent content = first.Content(17);
  first.Store(content);
  EXPECT_EQ((*second)->Lookup(content, 0, 16).num_tokens, 16);
  const auto load = (*second)->PrepareLoad(1, content, 0, 16);
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_THAT(load->reads, SizeIs(4));
  // Its own load is worth waiting for, another device's is not.
  EXPECT_TRUE((*second)->CostOfLoad(content, 0, 16).is_being_read);
  EXPECT_FALSE(first->CostOfLoad(content, 0, 16).is_being_read);
  // The slots that it reads stay, whatever is stored.
  EXPECT_EQ(first.Prepare(first.Content(17, 100), 17).ticket, 0);
  EXPECT_TRUE((*second)->CheckInvariants().ok()) << (*second)->CheckInvariants();
  EXPECT_EQ(first->CompleteLoad(load->ticket).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE((*second)->CompleteLoad(load->ticket).ok());
  EXPECT_THAT(first.Store(first.Content(17, 100)).writes, SizeIs(4));
  EXPECT_EQ((*second)->Lookup(content, 0, 16).num_tokens, 0);
}

TEST(OffloadManagerTest, ASharedTierMustBeAlike) {
  Tiers first(List{{.capacity_slots = 4}});
  const auto second = OffloadManager::Create(
      first.model(), {.tiers = {{.capacity_slots = 5}}, .shared = {first->shared_tier(0)}});
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("tier \"host\": shared with a manager of other blocks"));
}

TEST(OffloadManagerTest, AWindowNeedsItsLastBlocksOnly) {
  Tiers tiers(List{{.capacity_slots = 100}}, {Full(4), Window(4, 9)});
  const PrefixContent content = tiers.Content(33);
  const std::vector<BlockId> full(8, 1), window = {0, 0, 0, 0, 1, 1, 1, 1};
  const StorePlan plan =
      tiers->PrepareStore(1, content, {.end = 33, .tables = {full, window}}).value();
  EXPECT_THAT(plan.writes, SizeIs(12));
  ASSERT_TRUE(tiers->CompleteStore(plan.ticket).ok());
  EXPECT_EQ(tiers.Found(content), 32);
  EXPECT_THAT(tiers->CostOfLoad(content, 0, 32).bytes, ElementsAre(10 * kBlockBytes));
  EXPECT_FALSE(tiers->CostOfLoad(content, 0, 32).is_being_read);
  EXPECT_THAT(tiers.Load(content, 32).reads, SizeIs(8 + 2));
  EXPECT_TRUE(tiers->CostOfLoad(content, 24, 32).is_being_read);
  EXPECT_EQ(tiers->Lookup(content, 0, 27).num_tokens, 24);
  EXPECT_EQ(tiers->Lookup(content, 0, 23).num_tokens, 0);  // the window before has no blocks
  EXPECT_EQ(tiers->Lookup(content, 20, 27).num_tokens, 24);
  tiers->Abandon(2);
}

TEST(OffloadManagerTest, ADraftGroupNeedsTheBlockBehind) {
  KvCacheConfig config = Config(100, {Full(4)});
  config.groups[0].is_draft = true;
  const auto model = Manager(config, {.use_eagle = true});
  auto tiers = OffloadManager::Create(*model, {.tiers = {{.capacity_slots = 10}}}).value();
  const auto request = NewRequest(*model, Tokens(18));
  const auto plan = tiers->PrepareStore(1, request->content(), {.end = 16}).value();
  ASSERT_TRUE(tiers->CompleteStore(plan.ticket).ok());
  EXPECT_EQ(tiers->Lookup(request->content(), 0, 17).num_tokens, 12);
}

// vllm#56871: eight groups of equal size in the room for 64 chunks.
TEST(OffloadManagerTest, SlotsForAllGroupsHoldAGthOfWhatPackedOnesHold) {
  std::vector<KvCacheSpec> specs = {Full(4)};
  for (int i = 0; i < 7; ++i) specs.push_back(Window(4, 9 + i));
  const auto held = [&](SlotLayout layout) {
    Tiers tiers(List{{.capacity_bytes = 64 * kBlockBytes, .layout = layout}}, specs);
    const PrefixContent content = tiers.Content(33);
    tiers.Store(content);
    EXPECT_LE(tiers->tier(0).bytes_taken(), 64 * kBlockBytes);
    return std::pair(tiers->tier(0).num_found(), tiers.Found(content));
  };
  EXPECT_EQ(held(SlotLayout::kPacked), std::pair(64L, 32L));
  EXPECT_EQ(held(SlotLayout::kLargestGroup), std::pair(64L, 32L));
  EXPECT_EQ(held(SlotLayout::kAllGroups), std::pair(8L, 4L));
}

TEST(OffloadManagerTest, PromptOnlyLeavesOutputsOut) {
  Tiers tiers(List{{.capacity_slots = 10, .prompt_only = true}});
  const auto plan =
      tiers->PrepareStore(1, tiers.Content(32), {.end = 32, .num_prompt_tokens = 15}).value();
  EXPECT_THAT(plan.writes, SizeIs(3));
  ASSERT_TRUE(tiers->CompleteStore(plan.ticket).ok());
}

TEST(OffloadManagerTest, EventsNameTheTier) {
  Tiers tiers(List{{.name = "host", .capacity_slots = 1},
               {.name = "store",
                .capacity_slots = 4,
                .medium = TierMedium::kStorage,
                .locality = TierLocality::kRemote}},
              {Full(4)}, /*enable_events=*/true);
  const PrefixContent content = tiers.Content(9);
  tiers.Store(content, 4);
  tiers.Store(tiers.Content(5, 100));
  const std::vector<KvEvent> events = tiers->TakeEvents();
  ASSERT_THAT(events, SizeIs(5));
  const auto& host = std::get<BlockStored>(events[0]);
  EXPECT_EQ(host.medium, "CPU");
  EXPECT_EQ(host.locality, "LOCAL");
  EXPECT_EQ(host.ownership, std::nullopt);
  EXPECT_EQ(host.block_size, 4);
  EXPECT_THAT(host.block_hashes, ElementsAre(*content.HashOfBlockAt(0, 4)));
  const auto& remote = std::get<BlockStored>(events[1]);
  EXPECT_EQ(remote.medium, "STORAGE");
  EXPECT_EQ(remote.locality, "REMOTE");
  EXPECT_EQ(remote.ownership, "store");
  const auto& removed = std::get<BlockRemoved>(events[2]);
  EXPECT_EQ(removed.medium, "CPU");
  EXPECT_EQ(removed.block_hash, host.block_hashes[0]);
  EXPECT_EQ(removed.reason, RemovalReason::kReused);
}

TEST(OffloadManagerTest, EveryPolicyEvictsWhatMayGo) {
  for (const char* policy : {"lru", "arc", "hazard"}) {
    Tiers tiers(List{{.capacity_slots = 6, .policy = ParseTierPolicy(policy).value()}});
    for (TokenId i = 0; i < 40; ++i) {
      const PrefixContent content = tiers.Content(9 + i % 3 * 4, i % 7 * 100);
      tiers->Touch(content, content.num_tokens());
      tiers.Store(content);
      const int64_t found = tiers.Found(content);
      if (found > 0) {
        ASSERT_TRUE(tiers->CompleteLoad(tiers.Load(content, found).ticket).ok());
      }
      tiers->RequestFinished(content, content.num_tokens());
      ASSERT_TRUE(tiers->CheckInvariants().ok()) << tiers->CheckInvariants();
      ASSERT_LE(tiers->tier(0).num_used_slots(), 6);
    }
    EXPECT_GT(tiers->tier(0).stats().num_evicted, 0) << policy;
  }
}

TEST(OffloadManagerTest, BadOptionsAreRefused) {
  const auto model = Manager(10, {Full(4)});
  const auto error = [&](std::vector<TierOptions> tiers, std::vector<int64_t> bytes = {}) {
    const auto made = OffloadManager::Create(*model, {.tiers = tiers, .group_block_bytes = bytes});
    EXPECT_FALSE(made.ok());
    return std::string(made.status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("name at least one"));
  EXPECT_THAT(error({{.capacity_slots = 1}, {.capacity_slots = 1}}),
              HasSubstr("two have the name"));
  EXPECT_THAT(error({{}}), HasSubstr("expected one of them above 0"));
  EXPECT_THAT(error({{.capacity_bytes = 1, .capacity_slots = 1}}), HasSubstr("tier \"host\""));
  EXPECT_THAT(error({{.capacity_bytes = 127}}),
              HasSubstr("a chunk of the largest group takes 128"));
  EXPECT_THAT(error({{.capacity_bytes = 127, .layout = SlotLayout::kAllGroups}}),
              HasSubstr("a slot takes 128"));
  EXPECT_THAT(error({{.capacity_slots = 1, .blocks_per_chunk = 0}}), HasSubstr("blocks_per_chunk"));
  EXPECT_THAT(error({{.capacity_slots = kMostSlots + 1}}), HasSubstr("at most 134217728"));
  EXPECT_THAT(error({{.capacity_slots = 1, .policy = {.name = "ttl", .ranks_retained = true}}}),
              HasSubstr("so take lru"));
  EXPECT_THAT(error({{.capacity_slots = 1,
                      .blocks_per_chunk = 2,
                      .write_policy = WritePolicy::kOnEvict}}),
              HasSubstr("what the level before it evicts"));
  EXPECT_THAT(error({{.capacity_slots = 1,
                      .write_policy = WritePolicy::kOnEvict,
                      .prompt_only = true}}),
              HasSubstr("prompt_only"));
  EXPECT_THAT(error({{.capacity_slots = 1}}, {1, 2}), HasSubstr("2 entries, expected 1"));
  EXPECT_THAT(error({{.capacity_slots = 1}}, {0}), HasSubstr("group_block_bytes[0] is 0"));
  EXPECT_THAT(std::string(ParseSlotLayout("x").status().message()),
              HasSubstr("packed|largest-group|all-groups"));
  EXPECT_THAT(std::string(ParseWritePolicy("x").status().message()),
              HasSubstr("write-through|on-evict|on-second-use"));
  EXPECT_EQ(*ParseWritePolicy("on-evict"), WritePolicy::kOnEvict);
}

TEST(OffloadManagerTest, BadCallsChangeNothing) {
  Tiers tiers(List{{.capacity_slots = 10}});
  const PrefixContent content = tiers.Content(17);
  const StorePlan store = tiers.Prepare(content, 17);
  EXPECT_FALSE(tiers->PrepareStore(1, content, {.begin = 3, .end = 2}).ok());
  EXPECT_FALSE(tiers->PrepareStore(1, content, {.end = 18}).ok());
  EXPECT_FALSE(tiers->PrepareStore(1, content, {.end = 8, .tables = {{}, {}}}).ok());
  EXPECT_EQ(tiers->CompleteLoad(store.ticket).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(tiers->CompleteStore(store.ticket).ok());
  EXPECT_EQ(tiers->FailStore(store.ticket).code(), absl::StatusCode::kNotFound);
  for (const auto& [from, to] : {std::pair(0, 0), {0, 3}, {2, 8}, {-4, 8}, {0, 20}}) {
    EXPECT_FALSE(tiers->PrepareLoad(1, content, from, to).ok()) << from << " " << to;
  }
  EXPECT_EQ(tiers->Evict(0, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tiers->Evict(1, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tiers->num_open_tickets(), 0);
  EXPECT_EQ(tiers.Found(content), 16);
}

TEST(OffloadManagerTest, ChunksOfSeveralBlocksAreReadInParts) {
  Tiers tiers(List{{.capacity_slots = 10, .blocks_per_chunk = 3}});
  const PrefixContent content = tiers.Content(36);
  const StorePlan plan = tiers.Store(content, 30);
  ASSERT_THAT(plan.writes, SizeIs(2));
  EXPECT_EQ(plan.writes[1].first_block, 3);
  EXPECT_EQ(plan.writes[1].bytes, 3 * kBlockBytes);
  EXPECT_EQ(tiers.Found(content), 24);
  EXPECT_EQ(tiers->Lookup(content, 0, 19).num_tokens, 16);
  const LoadPlan load = tiers.Load(content, 16, 4);
  ASSERT_THAT(load.reads, SizeIs(2));
  EXPECT_EQ(load.reads[0].block_in_chunk, 1);
  EXPECT_EQ(load.reads[0].num_blocks, 2);
  EXPECT_EQ(load.reads[1].num_blocks, 1);
  ASSERT_TRUE(tiers->CompleteLoad(load.ticket).ok());
  EXPECT_EQ(tiers->tier(0).stats().bytes_read, 3 * kBlockBytes);
  EXPECT_EQ(tiers->tier(0).stats().num_useful, 2);
}

}  // namespace
}  // namespace kvblocks::offload
