// Hits that end inside blocks against a naive device: every block holds what was written into it,
// and a hit must find what the request would have computed. With one page size and in chunks, with
// tokens compared and without (BM-119 to BM-122, V-20 to V-22).

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "managers/testing/test_models.h"

namespace kvblocks {
namespace {

constexpr int64_t kUnit = 2;  // tokens of a hash block

KvCacheSpec ModelStates(int64_t block_size, int64_t num_speculative_blocks) {
  return MambaSpec::Create({.block_size = block_size,
                            .states = {{.shape = {4}}},
                            .cache_mode = MambaCacheMode::kAlign,
                            .num_speculative_blocks = num_speculative_blocks})
      .value();
}

struct Content {
  std::vector<TokenId> tokens = {};
  std::string salt = {};

  // What the row of a position, or the state behind it, depends on.
  std::string Prefix(int64_t num_tokens) const {
    return absl::StrCat(salt, ":",
                        absl::StrJoin(absl::MakeConstSpan(tokens).first(
                                          static_cast<size_t>(num_tokens)), ","));
  }
};

// What lies in the blocks: a row per token, or one state.
class Device {
 public:
  explicit Device(const KvCacheManager& manager)
      : manager_(manager), rows_(static_cast<size_t>(manager.pool().num_blocks())) {}

  void Copy(const std::vector<BlockCopy>& copies) {
    for (const BlockCopy& copy : copies) rows_[At(copy.target)] = rows_[At(copy.source)];
  }
  void Compute(const Request& request, const Content& content, int64_t from, int64_t to) {
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      const auto table = manager_.GetBlocks(request, g);
      const int64_t block_size = manager_.group(g).block_size();
      if (IsState(g)) {
        rows_[At(table[static_cast<size_t>((to - 1) / block_size)])] = {content.Prefix(to)};
        continue;
      }
      for (int64_t i = from; i < to; ++i) {
        auto& rows = rows_[At(table[static_cast<size_t>(i / block_size)])];
        rows.resize(static_cast<size_t>(block_size));
        rows[static_cast<size_t>(i % block_size)] = content.Prefix(i + 1);
      }
    }
  }
  // Whether the blocks hold what the first `end` tokens give, as far as later tokens read it.
  bool Holds(GroupId g, absl::Span<const BlockId> table, const Content& content,
             int64_t end) const {
    const int64_t block_size = manager_.group(g).block_size();
    if (IsState(g)) {
      const auto& rows = rows_[At(table[static_cast<size_t>((end - 1) / block_size)])];
      return rows == std::vector<std::string>{content.Prefix(end)};
    }
    const int64_t window = manager_.group(g).spec().sliding_window().value_or(end + 1);
    for (int64_t i = std::max<int64_t>(0, end - window + 1); i < end; ++i) {
      const auto& rows = rows_[At(table[static_cast<size_t>(i / block_size)])];
      const auto at = static_cast<size_t>(i % block_size);
      if (rows.size() <= at || rows[at] != content.Prefix(i + 1)) return false;
    }
    return true;
  }

 private:
  static size_t At(BlockId id) { return static_cast<size_t>(id); }
  bool IsState(GroupId g) const {
    return manager_.group(g).spec().kind() == KvCacheSpecKind::kMamba;
  }

  const KvCacheManager& manager_;
  std::vector<std::vector<std::string>> rows_;
};

struct Setting {
  std::vector<KvCacheSpec> specs;
  bool is_native = false;
  Semantics semantics = {};
  int64_t lookahead = 0;
  // Steps end where an engine ends them: no step runs over the end of a state's block that it began
  // in or before, except to that of a later block.
  bool steps_end_at_states = false;
};

// Of a step that begins at `from`. REQUIRES: from < num_tokens, the second group has the states.
int64_t EndOfStep(const Setting& setting, int64_t from, int64_t most, int64_t num_tokens) {
  const int64_t end = std::min(from + most, num_tokens);
  if (!setting.steps_end_at_states) return end;
  const int64_t block = setting.specs[1].block_size();
  const int64_t block_end = from - from % block + block;
  if (end <= block_end) return end;
  return from % block != 0 ? block_end : end - end % block;
}

KvCacheConfig ConfigOf(const Setting& setting, int64_t num_blocks) {
  KvCacheConfig config = Config(num_blocks, setting.specs);
  config.hash_block_size = kUnit;
  if (!setting.is_native) return config;
  const int64_t num_chunks = num_blocks / 3;
  config.num_blocks = 1 + 3 * num_chunks;
  config.native = NativeLayout{.num_chunks = num_chunks, .pages_per_chunk = {2, 3}};
  for (size_t g = 0; g < setting.specs.size(); ++g) {
    config.native->class_of_group.push_back(g == 0 ? 0 : 1);
  }
  return config;
}

// One manager, its requests and its device.
struct World {
  World(const Setting& setting, int64_t num_blocks, bool compares)
      : manager(KvCacheManager::Create(ConfigOf(setting, num_blocks),
                                       {.max_model_len = 64,
                                        .semantics = setting.semantics,
                                        .num_hash_lookahead_tokens = setting.lookahead,
                                        .hash_seed = "seed",
                                        .compare_tokens_on_hit = compares,
                                        .partial_hits = true,
                                        .lookup_history_blocks = compares ? 100 : 0})
                    .value()),
        device(*manager) {}

  std::unique_ptr<KvCacheManager> manager;
  Device device;
  std::vector<std::unique_ptr<Request>> requests;
};

struct Counts {
  int64_t hits_inside = 0, copies = 0, no_space = 0;
  int64_t wrong_hits = 0;    // whose blocks do not hold what the request would have computed
  int64_t wrong_tables = 0;  // the same of a step's own blocks
};

void Drive(const Setting& setting, int64_t num_blocks, int seed, Counts& counts) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  const auto pick = [&](int64_t below) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(below));
  };
  World plain(setting, num_blocks, false);
  World comparing(setting, num_blocks, true);
  World* const worlds[] = {&plain, &comparing};
  std::vector<Content> contents;
  for (int step = 0; step < 100; ++step) {
    for (World* world : worlds) world->manager->NewStepStarts();
    if (contents.empty() || pick(4) == 0) {
      Content content{.salt = pick(3) == 0 ? "s" : ""};
      if (!contents.empty() && pick(4) > 0) {  // shares some of another's tokens
        const Content& other = contents[static_cast<size_t>(pick(std::ssize(contents)))];
        const int64_t shared = pick(std::ssize(other.tokens) + 1);
        content.tokens.assign(other.tokens.begin(), other.tokens.begin() + shared);
        if (pick(4) > 0) content.salt = other.salt;
      }
      const int64_t more = 1 + pick(14);
      for (int64_t i = 0; i < more && content.tokens.size() < 40; ++i) {
        content.tokens.push_back(static_cast<TokenId>(pick(2)));
      }
      for (World* world : worlds) {
        world->requests.push_back(
            world->manager
                ->NewRequest({.id = absl::StrCat("r", contents.size()),
                              .content = {.token_ids = content.tokens, .cache_salt = content.salt}})
                .value());
      }
      contents.push_back(content);
    }
    const auto r = static_cast<size_t>(
        std::max<int64_t>(0, std::ssize(contents) - 1 - pick(4)));
    Content& content = contents[r];
    if (pick(6) == 0) {
      for (World* world : worlds) {
        ASSERT_TRUE(world->manager->Free(*world->requests[r]).ok());
        world->requests[r]->MarkPreempted();
      }
      continue;
    }
    if (plain.requests[r]->num_computed_tokens() == plain.requests[r]->num_tokens()) {
      if (plain.requests[r]->num_tokens() > 50) continue;
      const TokenId token = static_cast<TokenId>(pick(2));
      content.tokens.push_back(token);
      for (World* world : worlds) {
        ASSERT_TRUE(world->requests[r]->AppendOutputTokens({token}).ok());
      }
    }
    std::vector<int64_t> hits;
    std::vector<bool> fits;
    const int64_t most = 1 + pick(9);
    const bool by_hand = pick(2) == 0;
    for (World* world : worlds) {
      KvCacheManager& manager = *world->manager;
      Request& request = *world->requests[r];
      ComputedBlocks computed;
      const bool is_new = !manager.HoldsBlocks(request);
      if (is_new) {
        computed = Hits(manager, request);
        ASSERT_LT(computed.num_tokens(), request.num_tokens());
        for (GroupId g = 0; computed.num_tokens() > 0 && g < manager.num_groups(); ++g) {
          counts.wrong_hits +=
              !world->device.Holds(g, computed.blocks(g), content, computed.num_tokens());
        }
        // The same lists, put together by a caller, are examined block by block.
        HitLists lists;
        for (GroupId g = 0; g < manager.num_groups(); ++g) {
          lists.emplace_back(computed.blocks(g).begin(), computed.blocks(g).end());
        }
        if (by_hand) computed = ComputedBlocks(lists, computed.num_tokens());
      }
      hits.push_back(computed.num_tokens());
      const int64_t from = request.num_computed_tokens() + computed.num_tokens();
      const int64_t count = EndOfStep(setting, from, most, request.num_tokens()) - from;
      const auto slots = manager.AllocateSlots(
          request, {.num_new_tokens = count, .computed_blocks = is_new ? &computed : nullptr});
      ASSERT_TRUE(slots.ok()) << slots.status();
      fits.push_back(slots->has_value());
      const auto copies = manager.TakeBlockCopies();
      if (slots->has_value()) {
        world->device.Copy(copies);
        world->device.Compute(request, content, from, from + count);
        request.set_num_computed_tokens(from + count);
        for (GroupId g = 0; g < manager.num_groups(); ++g) {
          counts.wrong_tables +=
              !world->device.Holds(g, manager.GetBlocks(request, g), content, from + count);
        }
        counts.copies += std::ssize(copies);
        for (GroupId g = 0; g < manager.num_groups() && computed.num_tokens() > 0; ++g) {
          counts.hits_inside += computed.num_tokens() % manager.group(g).block_size() != 0;
        }
      } else {
        ++counts.no_space;
        EXPECT_TRUE(copies.empty());
      }
      ASSERT_TRUE(manager.ReleaseBlockCopies(copies).ok());
      ASSERT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
    }
    ASSERT_EQ(hits[0], hits[1]);
    ASSERT_EQ(fits[0], fits[1]);
    ASSERT_EQ(plain.manager->GetBlockIds(*plain.requests[r]),
              comparing.manager->GetBlockIds(*comparing.requests[r]));
    if (!fits[0]) {  // make room
      for (size_t other = 0; other < contents.size(); ++other) {
        for (World* world : worlds) {
          ASSERT_TRUE(world->manager->Free(*world->requests[other]).ok());
          world->requests[other]->MarkPreempted();
        }
      }
    }
  }
  for (World* world : worlds) {
    world->requests.clear();
    EXPECT_EQ(world->manager->pool().num_live(), 0);
    EXPECT_TRUE(world->manager->ResetPrefixCache());
    EXPECT_EQ(world->manager->pool().num_keys(), 0);
  }
}

std::vector<std::vector<KvCacheSpec>> Models() {
  return {{Full(4), ModelStates(4, 0)},
          {Full(8), ModelStates(4, 1)},
          {Full(6), ModelStates(6, 2), Window(kUnit, 7)},
          {Full(8), ModelStates(8, 0), Full(4)}};
}

// What versions do, as far as it concerns hits.
Semantics SemanticsOf(const char* version) {
  Semantics semantics = *Semantics::ByName(version);
  // Stale hits would fail the comparison with the device, as they should.
  semantics.trusts_hits = false;
  semantics.retention_interval = std::nullopt;
  return semantics;
}

TEST(PartialHitsModelTest, HitsHoldWhatTheRequestWouldHaveComputed) {
  for (bool is_native : {false, true}) {
    Counts counts;
    for (const auto& specs : Models()) {
      for (const char* version : {"vllm-0.25", "vllm-0.33", "vllm-0.33-exactly"}) {
        Setting setting{
            .specs = specs, .is_native = is_native, .semantics = SemanticsOf(version)};
        // It relies on where steps end: see the next test.
        setting.semantics.registers_earlier_states = false;
        for (int seed = 0; seed < 3; ++seed) {
          setting.lookahead = seed % 3 == 2 ? 1 : 0;
          SCOPED_TRACE(absl::StrCat(version, " seed ", seed, " native ", is_native));
          Drive(setting, seed % 2 == 0 ? 40 : 200, seed, counts);
          if (testing::Test::HasFatalFailure()) return;
          ASSERT_EQ(counts.wrong_hits, 0);
          ASSERT_EQ(counts.wrong_tables, 0);
        }
      }
    }
    EXPECT_GT(counts.hits_inside, 100);
    EXPECT_GT(counts.copies, 100);
    EXPECT_GT(counts.no_space, 10);
  }
}

// V-6: with registers_earlier_states each state that has a block is registered as that of the
// block's end. So it is if steps end there, as the engine's scheduler lets them, and is not if they
// run over it. Without the switch it does not matter.
TEST(PartialHitsModelTest, EarlierStatesAreRightWhereStepsEndAtThem) {
  for (const bool steps_end_at_states : {true, false}) {
    Counts counts;
    for (const auto& specs : Models()) {
      for (int seed = 0; seed < 3; ++seed) {
        Setting setting{.specs = specs,
                        .semantics = SemanticsOf("vllm-0.33-exactly"),
                        .lookahead = seed % 3 == 2 ? 1 : 0,
                        .steps_end_at_states = steps_end_at_states};
        ASSERT_TRUE(setting.semantics.registers_earlier_states);
        Drive(setting, seed % 2 == 0 ? 40 : 200, seed, counts);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    EXPECT_EQ(counts.wrong_hits > 0, !steps_end_at_states) << counts.wrong_hits;
    EXPECT_EQ(counts.wrong_tables, 0);
    EXPECT_GT(counts.hits_inside, 50);
  }
}

}  // namespace
}  // namespace kvblocks
