// Worked examples of KV events: WE-34 and WE-35.

#include <gtest/gtest.h>

#include "gmock/gmock.h"
#include "kvblocks/lookup_explanation.h"
#include "tests/examples/model.h"
#include "tests/group_specs.h"

namespace kvblocks::examples {
namespace {

using ::testing::HasSubstr;
using testing::Chunked;
using testing::Cross;
using testing::Full;
using testing::Mamba;
using testing::Window;

KvCacheManagerOptions WithEvents() {
  KvCacheManagerOptions options = Model::Options();
  options.enable_events = true;
  return options;
}

const BlockHash& HashAt(const Request& request, size_t index) {
  return request.content().hashes()[index];
}

// What an event says, group by group: its hashes, or the removed one.
struct Seen {
  std::string kind;
  GroupId group = 0;
  std::vector<BlockHash> hashes = {};

  friend bool operator==(const Seen&, const Seen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Seen& seen) {
    out << seen.kind << " g" << seen.group;
    for (const BlockHash& hash : seen.hashes) out << " " << hash.ToHex().substr(0, 8);
    return out;
  }
};

std::vector<Seen> Summary(const std::vector<KvEvent>& events) {
  std::vector<Seen> seen;
  for (const KvEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      seen.push_back({"stored", stored->group_idx, stored->block_hashes});
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      seen.push_back({"removed", removed->group_idx, {removed->block_hash}});
    } else {
      seen.push_back({"cleared"});
    }
  }
  return seen;
}

TEST(BlockManagerExamples, WE34_Events) {
  Model m(7, {Full(4), Window(4, 6)}, WithEvents());
  Request& a = m.New(Range(0, 7));
  EXPECT_EQ(m.Alloc(a, 8), Groups("1,2|3,4"));
  const std::vector<KvEvent> first = m.manager->TakeEvents();
  const std::vector<BlockHash> h = {HashAt(a, 0), HashAt(a, 1)};
  EXPECT_EQ(Summary(first), (std::vector<Seen>{{"stored", 0, h}, {"stored", 1, h}}));
  for (const KvEvent& event : first) {
    const auto& stored = std::get<BlockStored>(event);
    EXPECT_EQ(stored.parent_block_hash, std::nullopt);
    EXPECT_EQ(stored.token_ids, Range(0, 7));
    EXPECT_EQ(stored.block_size, 4);
    EXPECT_EQ(stored.medium, "GPU");
    EXPECT_EQ(stored.extra_keys, (std::vector<std::optional<ExtraKeys>>(2)));
  }
  EXPECT_EQ(std::get<BlockStored>(first[0]).kv_cache_spec_kind, "full_attention");
  EXPECT_EQ(std::get<BlockStored>(first[0]).kv_cache_spec_sliding_window, std::nullopt);
  EXPECT_EQ(std::get<BlockStored>(first[1]).kv_cache_spec_kind, "sliding_window");
  EXPECT_EQ(std::get<BlockStored>(first[1]).kv_cache_spec_sliding_window, 6);

  m.Append(a, {8});
  EXPECT_EQ(m.Alloc(a, 1), Groups("5|6"));
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("6,5,2,1,4,3"));
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());

  Request& b = m.New(Fresh(12));
  EXPECT_EQ(m.Alloc(b, 12), Groups("6,5,2|1,4,3"));
  const std::vector<BlockHash> j = {HashAt(b, 0), HashAt(b, 1), HashAt(b, 2)};
  EXPECT_EQ(Summary(m.manager->TakeEvents()), (std::vector<Seen>{{"removed", 0, {h[1]}},
                                                                 {"removed", 0, {h[0]}},
                                                                 {"removed", 1, {h[1]}},
                                                                 {"removed", 1, {h[0]}},
                                                                 {"stored", 0, j},
                                                                 {"stored", 1, j}}));
  EXPECT_FALSE(m.manager->ResetPrefixCache());
  EXPECT_EQ(Summary(m.manager->TakeEvents()), std::vector<Seen>());
  m.Free(b);
  EXPECT_TRUE(m.manager->ResetPrefixCache());
  EXPECT_EQ(Summary(m.manager->TakeEvents()), (std::vector<Seen>{{"cleared"}}));
}

TEST(BlockManagerExamples, WE35_Runs) {
  Model m(30, {Full(32), Window(8, 8)}, WithEvents());
  Request& a = m.New(Range(0, 63));
  ASSERT_TRUE(m.Alloc(a, 64));
  const std::vector<KvEvent> events = m.manager->TakeEvents();
  EXPECT_EQ(Summary(events), (std::vector<Seen>{{"stored", 0, {HashAt(a, 3), HashAt(a, 7)}},
                                                {"stored", 1, {HashAt(a, 3)}},
                                                {"stored", 1, {HashAt(a, 7)}}}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(std::get<BlockStored>(events[0]).parent_block_hash, std::nullopt);
  EXPECT_EQ(std::get<BlockStored>(events[0]).token_ids, Range(0, 63));
  EXPECT_EQ(std::get<BlockStored>(events[1]).parent_block_hash, HashAt(a, 2));
  EXPECT_EQ(std::get<BlockStored>(events[1]).token_ids, Range(24, 31));
  EXPECT_EQ(std::get<BlockStored>(events[2]).parent_block_hash, HashAt(a, 6));
  EXPECT_EQ(std::get<BlockStored>(events[2]).token_ids, Range(56, 63));
}

// Worked examples: prompts that end inside a block, hits there, and the copies they need.

constexpr auto kAlign = MambaCacheMode::kAlign;

KvCacheManagerOptions PartialHits() {
  KvCacheManagerOptions options = Model::Options();
  options.partial_hits = true;
  options.enable_events = true;
  return options;
}

std::vector<BlockCopy> Copies(const std::string& groups, const std::string& sources,
                              const std::string& targets) {
  const Ids group = Blocks(groups), source = Blocks(sources), target = Blocks(targets);
  std::vector<BlockCopy> copies;
  for (size_t i = 0; i < group.size(); ++i) copies.push_back({group[i], source[i], target[i]});
  return copies;
}

TEST(BlockManagerExamples, WE46_PartialTailAndCopy) {
  Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, kAlign)}, 2, PartialHits());
  Request& a = m.New({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(m.Alloc(a, 4), Groups("1|2"));
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 2), Groups("3|4"));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1}));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1}));
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 1, 1, 0), 1);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 1, 1, 1), 2);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 2, 1, 0), 3);
  EXPECT_EQ(m.manager->pool().FindCached(a.content(), 2, 1, 1), 4);
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("5..19,3,1,4,2"));

  m.manager->NewStepStarts();
  Request& b = m.New({0, 0, 1, 1, 2, 2, 3, 3});
  EXPECT_EQ(m.HitTokens(b), 6);
  EXPECT_EQ(m.Hits(b), Groups("1,3|0,4"));
  const int64_t free = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 2, {.reserved_blocks = free - 4}), std::nullopt);
  EXPECT_EQ(m.Alloc(b, 2, {.reserved_blocks = free - 5}), Groups("5|6"));
  EXPECT_EQ(m.manager->num_free_blocks(), free - 5);
  EXPECT_EQ(m.Tables(b), Groups("1,5|0,6"));
  EXPECT_EQ((Ids{m.Ref(3), m.Ref(5), m.Ref(4), m.Ref(6)}), Blocks("1,2,1,2"));
  const std::vector<BlockCopy> copies = m.manager->TakeBlockCopies();
  EXPECT_EQ(copies, Copies("0,1", "3,4", "5,6"));
  EXPECT_TRUE(m.manager->TakeBlockCopies().empty());
  EXPECT_TRUE(m.manager->CheckInvariants().ok()) << m.manager->CheckInvariants();
  ASSERT_TRUE(m.manager->ReleaseBlockCopies(copies).ok());
  EXPECT_EQ((Ids{m.Ref(3), m.Ref(5), m.Ref(4), m.Ref(6)}), Blocks("0,1,0,1"));
  EXPECT_EQ(m.Queue(), Blocks("7..19,2,3,4"));
  EXPECT_TRUE(absl::IsInvalidArgument(m.manager->ReleaseBlockCopies(copies)));
  EXPECT_EQ(m.Ref(5), 1);
}

absl::Status CreateWith(const std::vector<KvCacheSpec>& specs, int64_t hash_block_size,
                        KvCacheManagerOptions options) {
  KvCacheConfig config{.num_blocks = 20, .hash_block_size = hash_block_size};
  for (const KvCacheSpec& spec : specs) config.groups.push_back({.spec = spec});
  return KvCacheManager::Create(config, options).status();
}

TEST(PartialHitsTest, RefusedWhereTheyCannotWork) {
  const auto refused = [](const absl::Status& status) {
    return absl::IsInvalidArgument(status) &&
           status.message().find("partial_hits") != absl::string_view::npos;
  };
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, PartialHits()).ok());
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign), Window(2, 6)}, 2, PartialHits()).ok());
  EXPECT_TRUE(refused(CreateWith({Full(4), Mamba(4, kAlign)}, 4, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Full(4), Window(4, 6)}, 2, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Mamba(4, kAlign), Window(4, 6)}, 2, PartialHits())));
  EXPECT_TRUE(refused(CreateWith({Full(4), Mamba(4, MambaCacheMode::kAll)}, 2, PartialHits())));
  KvCacheManagerOptions options = PartialHits();
  options.compare_tokens_on_hit = true;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.semantics.retention_interval = 8;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.lookup_history_blocks = 8;
  EXPECT_TRUE(CreateWith({Full(4), Mamba(4, kAlign)}, 2, options).ok());
  options = PartialHits();
  options.enable_caching = false;
  EXPECT_TRUE(CreateWith({Full(4), Window(4, 6)}, 2, options).ok());
}

// "last token 4+2, partial block 6+1".
std::string Missed(Model& m, const std::vector<TokenId>& tokens) {
  const LookupExplanation why = ExplainLookup(*m.manager, m.New(tokens)).value();
  std::string text = absl::StrCat("hit ", why.num_hit_tokens);
  for (const MissedRun& run : why.missed) {
    absl::StrAppend(&text, ", ", std::string(MissReasonName(run.reason)), " ", run.first_token, "+",
                    run.num_tokens);
    if (run.reason == MissReason::kGroupVeto) {
      absl::StrAppend(&text, " (", Describe(*run.absence), ")");
    }
  }
  return text;
}

TEST(PartialHitsTest, LookUpsAreExplainedByHashBlocks) {
  KvCacheManagerOptions options = PartialHits();
  options.lookup_history_blocks = 100;
  Model m = Model::WithHashBlocks(20, {Full(4), Mamba(4, kAlign)}, 2, options);
  Request& a = m.New({0, 0, 1, 1, 2, 2, 7});
  for (const int64_t count : {4, 2, 1}) {
    ASSERT_TRUE(m.Alloc(a, count));
    ASSERT_TRUE(m.manager->ReleaseBlockCopies(m.manager->TakeBlockCopies()).ok());
    m.manager->NewStepStarts();
  }
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}), "hit 6, first use 6+2");
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 7}), "hit 6, partial block 6+1");
  // The end of A's prompt is cached under six tokens, of which the last must be computed.
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2}), "hit 4, last token 4+2");
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 3, 3, 3}), "hit 4, first use 4+2, partial block 6+1");
  EXPECT_EQ(Missed(m, {5}), "hit 0, shorter than a block 0+1");
  // Without the state behind six tokens there is the one behind four, and without any nothing.
  const Request& b = m.New({0, 0, 1, 1, 2, 2, 3, 3});
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 2, 1, 1)}).ok());
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
            "hit 4, group veto 4+2 (removed 0 blocks ago), first use 6+2");
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 1, 1, 1)}).ok());
  EXPECT_EQ(
      Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
      "hit 0, group veto 0+2 (not kept), group veto 2+4 (removed 0 blocks ago), first use 6+2");
  // The block of rows that has tokens 4 and 5.
  ASSERT_TRUE(m.manager->EvictBlocks({m.manager->pool().FindCached(b.content(), 2, 1, 0)}).ok());
  EXPECT_EQ(Missed(m, {0, 0, 1, 1, 2, 2, 3, 3}),
            "hit 0, group veto 0+2 (not kept), group veto 2+2 (removed 0 blocks ago), "
            "removed 4+2, first use 6+2");
}

// Worked examples: sparse and dense registration.

KvCacheManagerOptions Retention(std::optional<int64_t> interval) {
  KvCacheManagerOptions options = Model::Options();
  options.semantics.retention_interval = interval;
  return options;
}

void ExpectTwoGroups(const KvCacheManagerOptions& options, const std::vector<int>& registered,
                     int64_t same, int64_t prefix) {
  Model m(100, {Full(32), Window(8, 8)}, options);
  Request& a = m.New(Range(0, 127));
  ASSERT_TRUE(m.Alloc(a, 128));
  EXPECT_EQ(m.Registered(a, 0), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(m.Registered(a, 1), registered);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 127))), same);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 95))), prefix);
}

void ExpectOneGroup(int64_t interval, const std::vector<int>& registered) {
  Model m(100, {Window(16, 16)}, Retention(interval));
  Request& a = m.New(Range(0, 255));
  ASSERT_TRUE(m.Alloc(a, 256));
  EXPECT_EQ(m.Registered(a, 0), registered);
  EXPECT_EQ(m.HitTokens(m.New(Range(0, 255))), 240);
}

std::string Refusal(const std::vector<KvCacheSpec>& specs, const KvCacheManagerOptions& options) {
  KvCacheConfig config{.num_blocks = 100};
  for (const KvCacheSpec& spec : specs) config.groups.push_back({.spec = spec});
  const auto manager = KvCacheManager::Create(config, options);
  return manager.ok() ? "accepted" : std::string(manager.status().message());
}

TEST(BlockManagerExamples, WE45_Retention) {
  ExpectTwoGroups(Retention(std::nullopt), {3, 7, 11, 15}, 96, 64);
  ExpectTwoGroups(Retention(64), {7, 11, 15}, 96, 64);
  ExpectTwoGroups(Retention(0), {11}, 96, 0);
  for (const int64_t bad : {33, -32}) {
    EXPECT_EQ(Refusal({Full(32), Window(8, 8)}, Retention(bad)),
              "retention_interval is " + std::to_string(bad) +
                  " tokens, expected a multiple of the scheduler block size 32 from 0 to "
                  "1099511627776");
  }
  ExpectOneGroup(64, {3, 7, 11, 14, 15});
  ExpectOneGroup(0, {14});
}

TEST(RetentionTest, NeedsAGroupThatRegistersSparsely) {
  EXPECT_THAT(Refusal({Full(32), Chunked(32, 64)}, Retention(64)),
              HasSubstr("expected 0 or none without a window or Mamba group"));
  EXPECT_EQ(Refusal({Full(32)}, Retention(0)), "accepted");
  EXPECT_EQ(Refusal({Full(32), Mamba(32, MambaCacheMode::kAll)}, Retention(64)), "accepted");
}

// As older engines did: every block that is full.
TEST(DenseRegistrationTest, RegistersWhatNoHitCanUse) {
  KvCacheManagerOptions options = Model::Options();
  options.register_unreachable_blocks = true;
  ExpectTwoGroups(options, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 96, 64);
  Model m(100, {Full(32), Window(8, 8)}, options);
  Request& a = m.New(Range(0, 59));
  ASSERT_TRUE(m.Alloc(a, 60));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  options.semantics.retention_interval = 64;
  EXPECT_THAT(Refusal({Full(32), Window(8, 8)}, options),
              HasSubstr("register_unreachable_blocks is set next to retention_interval"));
}

// Worked examples: Mamba states and cross attention.

constexpr auto kNone = MambaCacheMode::kNone;
constexpr auto kAll = MambaCacheMode::kAll;

KvCacheManagerOptions CachingOff() {
  KvCacheManagerOptions options = Model::Options();
  options.enable_caching = false;
  return options;
}

TEST(BlockManagerExamples, WE42_MambaAlign) {
  Model m(30, {Full(16), Mamba(16, kAlign)});
  Request& a = m.New(Range(0, 54));
  EXPECT_EQ(m.Alloc(a, 48), Groups("1,2,3|0,0,4"));
  EXPECT_EQ(m.Registered(a, 1), (std::vector<int>{2}));
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 7), Groups("5|6"));
  EXPECT_EQ(m.Tables(a)[1], Blocks("0,0,4,6"));
  m.Append(a, {55});
  m.manager->NewStepStarts();
  EXPECT_EQ(m.Alloc(a, 1), Groups("|"));
  EXPECT_EQ(m.Tables(a)[1], Blocks("0,0,0,6"));
  EXPECT_EQ(m.Queue().back(), 4);
  Request& b = m.New(Join(Range(0, 47), Fresh(4)));
  EXPECT_EQ(m.HitTokens(b), 48);
  EXPECT_EQ(m.Hits(b), Groups("1,2,3|0,0,4"));
  EXPECT_EQ(m.Alloc(b, 4), Groups("7|8"));
  Request& c = m.New(Join(Range(0, 31), Fresh(20)));
  EXPECT_EQ(m.HitTokens(c), 0);
  EXPECT_EQ(m.LookUp(c).shared_prefix_boundary(), 32);
}

TEST(BlockManagerExamples, WE43_SameStep) {
  Model m(30, {Full(16), Mamba(16, kAlign)});
  Request& a = m.New(Range(0, 31));
  EXPECT_EQ(m.Alloc(a, 32), Groups("1,2|0,3"));
  Request& b = m.New(Range(0, 32));
  EXPECT_EQ(m.HitTokens(b), 32);
  const Ids queue = m.Queue();
  EXPECT_EQ(m.Alloc(b, 1), std::nullopt);
  EXPECT_EQ(m.Alloc(b, 1, {.full_sequence_must_fit = true}), std::nullopt);
  EXPECT_EQ(m.Queue(), queue);
  m.manager->NewStepStarts();
  const int64_t free = m.manager->num_free_blocks();
  EXPECT_EQ(m.Alloc(b, 1), Groups("4|5"));
  EXPECT_EQ(m.manager->num_free_blocks(), free - 2);
}

TEST(BlockManagerExamples, WE44_MambaScratchAndModes) {
  Model align(20, {Mamba(16, kAlign, 2)});
  Request& a = align.New(Range(0, 34));
  EXPECT_EQ(align.Alloc(a, 16), Groups("1,2,3"));
  EXPECT_EQ(align.Alloc(a, 4), Groups("4"));
  EXPECT_EQ(align.Tables(a), Groups("1,2,3,4"));
  EXPECT_EQ(align.Alloc(a, 15), Groups("5"));
  EXPECT_EQ(align.Tables(a), Groups("0,2,3,4,5"));

  Model none(20, {Mamba(64, kNone, 1)}, CachingOff());
  Request& n = none.New(Range(0, 59));
  EXPECT_EQ(none.Alloc(n, 20), Groups("1,2"));
  EXPECT_EQ(none.Alloc(n, 20), Groups(""));

  Model all(30, {Full(4), Mamba(4, kAll)});
  Request& r = all.New(Range(0, 12));
  EXPECT_EQ(all.Alloc(r, 13), Groups("1..4|5..8"));
  EXPECT_EQ(all.NumKeys(), 6);
  all.Append(r, {13});
  EXPECT_EQ(all.Alloc(r, 1), Groups("|"));
  EXPECT_EQ(all.Tables(r)[1], Blocks("0,0,0,8"));
  const Ids queue = all.Queue();
  EXPECT_EQ(Ids(queue.end() - 3, queue.end()), Blocks("7,6,5"));
  Request& shorter = all.New(Range(0, 9));
  EXPECT_EQ(all.HitTokens(shorter), 8);
  EXPECT_EQ(all.Hits(shorter), Groups("1,2|0,6"));
}

TEST(BlockManagerExamples, WE47_Cross) {
  Model m(20, {Full(4), Cross(4)}, CachingOff());
  Request& a = m.New(Range(0, 8));
  EXPECT_EQ(m.Alloc(a, 6, {.num_encoder_tokens = 10}), Groups("1,2|3,4,5"));
  EXPECT_EQ(m.Alloc(a, 3), Groups("6|"));
  m.Free(a);
  EXPECT_EQ(m.Queue(), Blocks("5,4,3,6,2,1,7..19"));
}

}  // namespace
}  // namespace kvblocks::examples
