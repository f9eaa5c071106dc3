// The pool under each eviction policy against the policy's definition: the blocks taken must be the
// same, one by one, whatever requests, evictions and resets come before.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block_pool/eviction/retention.h"
#include "block_pool/testing/pool_testing.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/eviction.h"
#include "tests/oracle/eviction.h"
#include "tests/property/check_property.h"

namespace kvblocks::property {
namespace {

constexpr int64_t kBlockSize = 512;

// A prompt of up to six blocks: one of a few roots, and two ways to go on after each block.
struct Prompt {
  std::vector<std::string> names;
  PrefixContent content;
};

Prompt DrawPrompt(Numbers& numbers) {
  std::vector<std::string> names;
  std::vector<BlockHash> hashes;
  std::string name(1, static_cast<char>('a' + numbers.Below(3)));
  for (int64_t left = 1 + numbers.Below(6); left > 0; --left) {
    names.push_back(name);
    uint64_t word = 1469598103934665603u;
    for (const char letter : name) word = (word ^ static_cast<uint64_t>(letter)) * 1099511628211u;
    hashes.push_back({{word, ~word, 0, 0}});
    name += numbers.OneIn(3) ? 'y' : 'x';
  }
  static const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(HashAlgorithm::kXxh3_128, std::string_view("0")),
                    .hash_block_size = kBlockSize});
  const auto num_tokens = static_cast<int64_t>(hashes.size()) * kBlockSize;
  return {std::move(names),
          PrefixContent::FromHashes(num_tokens, std::move(hashes), hashing).value()};
}

class PolicyPair {
 public:
  PolicyPair(const EvictionPolicyFactory& policy, int32_t num_blocks, int64_t most_retained)
      : is_modelled_(policy.name != "hazard"),
        real_(BlockPool::Create({.num_blocks = num_blocks,
                                 .eviction_policy = policy,
                                 .max_retained_blocks = most_retained})
                  .value()),
        model_(policy.name, num_blocks, most_retained) {}

  void Run(const Operation& operation) {
    Numbers numbers(operation.numbers);
    if (operation.kind < 10 && real_->retention() != nullptr) {
      Retain(numbers);
    } else if (operation.kind < 55) {
      Begin(numbers);
    } else if (operation.kind < 90) {
      End(numbers);
    } else if (operation.kind < 97) {
      const auto id = static_cast<BlockId>(1 + numbers.Below(real_->num_blocks() - 1));
      RC_ASSERT(real_->EvictBlocks(absl::MakeConstSpan(&id, 1)).ok());
      model_.Evict(id);
    } else {
      while (numbers.OneIn(2) && !tables_.empty()) End(numbers);
      RC_ASSERT(real_->ResetPrefixCache() == model_.Reset());
    }
    const absl::Status status = real_->CheckInvariants();
    RC_ASSERT(status == absl::OkStatus());
    RC_ASSERT(real_->num_free() == model_.num_free());
    if (real_->retention() != nullptr) {
      RC_ASSERT(real_->retention()->size() == model_.num_retained());
    }
  }

 private:
  // What is cached of a prompt, or time goes on.
  void Retain(Numbers& numbers) {
    if (numbers.OneIn(4)) {
      now_ += numbers.Below(20);
      real_->AdvanceTime(now_);
      model_.AdvanceTime(now_);
      return;
    }
    std::vector<BlockId> table;
    for (const std::string& name : DrawPrompt(numbers).names) {
      const BlockId id = model_.Find(name);
      if (id == kNullBlockId) break;
      table.push_back(id);
    }
    const auto priority = static_cast<int32_t>(10 + 20 * numbers.Below(3));
    const int64_t expires_at = numbers.OneIn(3) ? kNeverExpires : now_ + 1 + numbers.Below(30);
    const int64_t before = real_->retention()->totals().num_refused;
    const RetainOutcome outcome = real_->Retain(table, priority, expires_at);
    RC_ASSERT(outcome.num_refused == model_.Retain(table, priority, expires_at));
    RC_ASSERT(outcome.num_retained + outcome.num_refused == static_cast<int64_t>(table.size()));
    RC_ASSERT(real_->retention()->totals().num_refused == before + outcome.num_refused);
    for (BlockId id = 1; id < real_->num_blocks(); ++id) {
      RC_ASSERT(real_->retention()->contains(id) == model_.is_retained(id));
    }
  }

  void Begin(Numbers& numbers) {
    const Prompt prompt = DrawPrompt(numbers);
    const auto size = static_cast<int64_t>(prompt.names.size());
    std::vector<BlockId> table;
    for (const std::string& name : prompt.names) {
      const BlockId id = model_.Find(name);
      if (id == kNullBlockId) break;
      table.push_back(id);
    }
    std::vector<BlockId> found(prompt.names.size());
    const size_t num_found =
        real_->FindCachedRun(prompt.content, 0, 1, /*group=*/0, absl::MakeSpan(found));
    found.resize(num_found);
    RC_ASSERT(found == table);
    // A full hit computes its last block again, beside the cached one.
    if (num_found == prompt.names.size()) table.pop_back();
    const auto hits = static_cast<int64_t>(table.size());
    int64_t retained_hits = 0;
    for (const BlockId id : table) retained_hits += model_.is_retained(id) ? 1 : 0;
    if (real_->retention() != nullptr) retained_hits += real_->retention()->totals().num_hits;
    real_->Touch(table);
    model_.Touch(table);
    if (real_->retention() != nullptr) {
      RC_ASSERT(real_->retention()->totals().num_hits == retained_hits);
    }
    if (is_modelled_) {
      const auto taken = GetNewBlocks(*real_, size - hits);
      RC_ASSERT(taken == model_.Take(size - hits));
      if (!taken) return Free(table);
      table.insert(table.end(), taken->begin(), taken->end());
    } else if (!TakeUnmodelled(size - hits, table)) {
      return Free(table);
    }
    // Tails may stay without a key.
    const int64_t end = numbers.OneIn(4) ? size - 1 : size;
    if (end > hits) {
      real_->CacheFullBlocks(prompt.content, table, hits, end, kBlockSize, /*group=*/0);
    }
    for (int64_t i = hits; i < end; ++i) {
      model_.Register(table[static_cast<size_t>(i)], prompt.names[static_cast<size_t>(i)],
                      i > 0 ? table[static_cast<size_t>(i - 1)] : kNullBlockId);
    }
    tables_.push_back(std::move(table));
  }

  // No cached block builds upon a victim, or it is the front of the queue.
  bool TakeUnmodelled(int64_t k, std::vector<BlockId>& table) {
    if (!real_->Fits(k, 0)) return false;
    for (int64_t i = 0; i < k; ++i) {
      const BlockId front = real_->free_queue().front();
      real_->GetNewBlocks(1, table);
      RC_ASSERT(!model_.is_retained(table.back()) || !model_.HasUnretainedCandidate());
      RC_ASSERT(table.back() == front || !model_.HasCachedChild(table.back()));
      RC_ASSERT(table.back() == front || model_.is_cached(front));
      model_.TakeThis(table.back());
    }
    return true;
  }

  void End(Numbers& numbers) {
    if (tables_.empty()) return;
    const auto at = static_cast<size_t>(numbers.Below(static_cast<int64_t>(tables_.size())));
    Free(tables_[at]);
    tables_.erase(tables_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void Free(const std::vector<BlockId>& table) {
    real_->FreeBlocksReversed(table);
    model_.Free({table.rbegin(), table.rend()});
  }

  const bool is_modelled_;
  std::unique_ptr<BlockPool> real_;
  oracle::EvictingPool model_;
  std::vector<std::vector<BlockId>> tables_;
  int64_t now_ = 0;
};

class EvictionPolicyPropertyTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EvictionPolicyPropertyTest, TakesTheBlocksOfItsDefinition) {
  const std::string name = GetParam();
  const EvictionPolicyFactory policy =
      name == "fifo" ? Fifo() : ParseEvictionPolicy(name).value();
  CheckProperty(400, [&policy] {
    const auto num_blocks = *rc::gen::inRange<int32_t>(8, 40);
    const auto operations = *Operations(150);
    // The pool's own LRU has no index, and for most runs nothing is retained.
    const bool retains =
        policy.make == nullptr || policy.ranks_retained || *rc::gen::inRange(0, 3) == 0;
    PolicyPair pools(policy, num_blocks, retains ? *rc::gen::inRange<int64_t>(1, num_blocks) : 0);
    for (const Operation& operation : operations) pools.Run(operation);
  });
}

// Fifo is brought from outside.
INSTANTIATE_TEST_SUITE_P(All, EvictionPolicyPropertyTest,
                         ::testing::Values("arc", "fifo", "hazard", "lru", "priority", "ttl"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace kvblocks::property
