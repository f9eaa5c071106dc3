// Random calls on an OffloadManager and on its naive reference, which must agree at every step.

#include <random>
#include <set>

#include "gtest/gtest.h"
#include "managers/testing/test_models.h"
#include "offload/testing/naive_offload.h"
#include "offload/tier.h"

namespace kvblocks::offload {
namespace {

struct Open {
  TicketId ticket = 0;
  OwnerId owner = 0;
  bool is_load = false;
};

class RandomRun {
 public:
  explicit RandomRun(uint64_t seed) : random_(seed) {
    struct Model {
      std::vector<KvCacheSpec> specs;
      std::vector<NaiveOffload::GroupRule> rules;  // bytes: 4 tokens x 8 x 2 x 2
    };
    const Model models[] = {
        {{Full(4)}, {{4, 0, 128}}},
        {{Full(4), Window(4, 9)}, {{4, 0, 128}, {4, 9, 128}}},
        {{Window(4, 6), Full(8)}, {{4, 6, 128}, {8, 0, 256}}},
        {{Window(2, 4), Window(4, 9)}, {{2, 4, 64}, {4, 9, 128}}},
    };
    const Model& model = models[Draw(4)];
    model_ = Manager(100, model.specs, {.register_unreachable_blocks = true});
    std::vector<TierOptions> tiers;
    const int64_t num_tiers = 1 + Draw(3);
    for (int64_t t = 0; t < num_tiers; ++t) {
      TierOptions tier{.name = std::to_string(t)};
      tier.layout = static_cast<SlotLayout>(Draw(3));
      if (Draw(2) == 0) {
        tier.capacity_slots = 1 + Draw(20);
        tier.layout = SlotLayout::kPacked;
      } else {
        tier.capacity_bytes = 800 + Draw(4000);
      }
      tier.write_policy = static_cast<WritePolicy>(Draw(3));
      if (tier.write_policy == WritePolicy::kOnEvict) {
        tier.blocks_per_chunk = t == 0 ? 1 : tiers.back().blocks_per_chunk;
      } else {
        tier.blocks_per_chunk = 1 + Draw(2);
      }
      tier.exclusive = Draw(3) == 0;
      tiers.push_back(tier);
    }
    offload_ = OffloadManager::Create(*model_, {.tiers = tiers, .enable_events = true}).value();
    naive_ = std::make_unique<NaiveOffload>(model.rules, model_->scheduler_block_size(), tiers);
    // Prompts that share beginnings.
    for (int i = 0; i < 12; ++i) {
      std::vector<TokenId> tokens;
      for (int64_t n = 8 + Draw(50), path = 0; n > 0; --n) {
        if (tokens.size() % 8 == 0) path = path * 2 + Draw(2);
        tokens.push_back(static_cast<TokenId>(path * 1000 + n % 1));
      }
      contents_.push_back(
          PrefixContent::FromTokens({.token_ids = tokens}, model_->hashing()).value());
    }
  }

  void Step() {
    const PrefixContent& content = contents_[static_cast<size_t>(Draw(12))];
    const int64_t num_tokens = content.num_tokens();
    switch (Draw(10)) {
      case 0:
      case 1:
      case 2: {
        const int64_t begin = Draw(2) == 0 ? 0 : Draw(num_tokens);
        const int64_t end = begin + Draw(num_tokens - begin + 1);
        const OwnerId owner = Draw(4);
        const StorePlan plan =
            offload_->PrepareStore(owner, content, {.begin = begin, .end = end}).value();
        const TicketId id = plan.ticket != 0 ? plan.ticket : -1;
        naive_->Store(id, content, begin, end);
        if (id > 0) open_.push_back({.ticket = id, .owner = owner});
        break;
      }
      case 3: {
        std::vector<OffloadManager::EvictedBlock> blocks;
        std::vector<ChunkKey> keys;
        for (GroupId g = 0; g < model_->num_groups(); ++g) {
          const int64_t size = model_->group(g).block_size();
          if (content.num_hashed_tokens() < size) continue;
          const int64_t block = Draw(content.num_hashed_tokens() / size);
          keys.push_back(
              NaiveOffload::KeyAt(content, static_cast<size_t>(g), (block + 1) * size));
          blocks.push_back({.key = keys.back()});
        }
        const StorePlan plan = offload_->PrepareStoreOfEvicted(9, blocks);
        naive_->StoreEvicted(plan.ticket, keys);
        if (plan.ticket > 0) open_.push_back({.ticket = plan.ticket, .owner = 9});
        break;
      }
      case 4:
      case 5: {
        const int64_t unit = model_->scheduler_block_size();
        const int64_t computed = Draw(2) == 0 ? 0 : Draw(num_tokens / unit + 1) * unit;
        const auto match = offload_->Lookup(content, computed, num_tokens - 1);
        ASSERT_EQ(match.num_tokens, naive_->Lookup(content, computed, num_tokens - 1, false));
        ASSERT_EQ(match.num_tokens_with_pending,
                  naive_->Lookup(content, computed, num_tokens - 1, true));
        if (match.num_tokens <= computed) break;
        const OwnerId owner = Draw(4);
        const auto plan = offload_->PrepareLoad(owner, content, computed, match.num_tokens);
        ASSERT_TRUE(plan.ok()) << plan.status();
        naive_->Load(plan->ticket, content, computed, match.num_tokens);
        open_.push_back({.ticket = plan->ticket, .owner = owner, .is_load = true});
        break;
      }
      case 6:
      case 7:
        for (int64_t n = Draw(3); n > 0 && !open_.empty(); --n) End(Draw(4) > 0);
        break;
      case 8:
        offload_->Touch(content, num_tokens);
        naive_->Use(content, num_tokens);
        break;
      case 9:
        ResetOrAbandon();
        break;
    }
    Compare();
  }

  // Whatever happened, nothing stays in use once the transfers are over.
  void Finish() {
    while (!open_.empty()) End(Draw(2) == 0);
    offload_->Reset();
    naive_->Reset();
    Compare();
    for (TierId t = 0; t < offload_->num_tiers(); ++t) {
      EXPECT_EQ(offload_->tier(t).num_used_slots(), 0);
    }
  }

 private:
  int64_t Draw(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  void End(bool is_success) {
    const auto at = open_.begin() + Draw(static_cast<int64_t>(open_.size()));
    if (!at->is_load) {
      ASSERT_TRUE(
          (is_success ? offload_->CompleteStore(at->ticket) : offload_->FailStore(at->ticket))
              .ok());
      naive_->EndStore(at->ticket, is_success);
    } else if (is_success) {
      ASSERT_TRUE(offload_->CompleteLoad(at->ticket).ok());
      naive_->EndLoad(at->ticket, true, false);
    } else {
      const bool drop = Draw(2) == 0;
      ASSERT_TRUE(offload_
                      ->FailLoad(at->ticket, drop ? OffloadManager::AfterFailure::kDrop
                                                  : OffloadManager::AfterFailure::kKeep)
                      .ok());
      naive_->EndLoad(at->ticket, false, drop);
    }
    open_.erase(at);
  }

  void ResetOrAbandon() {
    if (Draw(6) == 0) {
      offload_->Reset();
      naive_->Reset();
    } else if (Draw(3) == 0) {
      const OwnerId owner = Draw(4);
      offload_->Abandon(owner);
      for (const Open& open : open_) {
        if (open.owner != owner) continue;
        if (open.is_load) {
          naive_->EndLoad(open.ticket, false, false);
        } else {
          naive_->EndStore(open.ticket, false);
        }
      }
      std::erase_if(open_, [&](const Open& open) { return open.owner == owner; });
    } else {
      const auto t = static_cast<TierId>(Draw(offload_->num_tiers()));
      const std::vector<SlotId> slots = offload_->tier(t).FoundSlots();
      if (slots.empty()) return;
      const ChunkKey key = offload_->tier(t).key(
          slots[static_cast<size_t>(Draw(static_cast<int64_t>(slots.size())))]);
      ASSERT_TRUE(offload_->Evict(t, key).ok());
      naive_->Drop(static_cast<size_t>(t), key);
    }
  }

  void Compare() {
    ASSERT_TRUE(offload_->CheckInvariants().ok()) << offload_->CheckInvariants();
    ASSERT_EQ(offload_->num_open_tickets(), static_cast<int64_t>(open_.size()));
    for (const KvEvent& event : offload_->TakeEvents()) {
      if (const auto* stored = std::get_if<BlockStored>(&event)) {
        const size_t t = stored->ownership ? std::stoul(*stored->ownership) : 0;
        for (const BlockHash& hash : stored->block_hashes) {
          ASSERT_TRUE(told_.insert({t, stored->group_idx, hash.words}).second);
        }
      } else {
        const auto& removed = std::get<BlockRemoved>(event);
        const size_t t = removed.ownership ? std::stoul(*removed.ownership) : 0;
        ASSERT_EQ(told_.erase({t, removed.group_idx, removed.block_hash.words}), 1u);
      }
    }
    size_t num_readable = 0;
    for (TierId t = 0; t < offload_->num_tiers(); ++t) {
      const Tier& tier = offload_->tier(t);
      const auto& expected = naive_->tier(static_cast<size_t>(t)).items;
      ASSERT_EQ(tier.num_used_slots(), static_cast<int64_t>(expected.size()));
      int64_t num_found = 0;
      for (const auto& item : expected) {
        num_found += item.is_found;
        if (!item.is_found) continue;
        const SlotId slot = tier.Find(item.key);
        ASSERT_NE(slot, kNoSlot);
        ASSERT_EQ(tier.IsReadable(slot), item.is_ready);
        ASSERT_EQ(tier.num_readers(slot), item.readers);
        if (item.is_ready) {
          ++num_readable;
          ASSERT_TRUE(
              told_.contains({static_cast<size_t>(t), item.key.group, item.key.hash.words}));
        }
      }
      ASSERT_EQ(tier.num_found(), num_found);
    }
    ASSERT_EQ(told_.size(), num_readable);
  }

  std::mt19937_64 random_;
  std::unique_ptr<KvCacheManager> model_;
  std::unique_ptr<OffloadManager> offload_;
  std::unique_ptr<NaiveOffload> naive_;
  std::vector<PrefixContent> contents_;
  std::vector<Open> open_;
  std::set<std::tuple<size_t, GroupId, std::array<uint64_t, 4>>> told_;
};

TEST(OffloadRandomTest, AgreesWithTheNaiveReference) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun run(seed);
    for (int step = 0; step < 120; ++step) {
      ASSERT_NO_FATAL_FAILURE(run.Step()) << "step " << step;
    }
    ASSERT_NO_FATAL_FAILURE(run.Finish());
  }
}

}  // namespace
}  // namespace kvblocks::offload
