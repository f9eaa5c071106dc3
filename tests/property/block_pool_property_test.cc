// BlockPool alone against the oracle's pool: taking, touching, freeing, registering, evicting,
// resetting, and ids from outside.

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "block_pool/testing/pool_testing.h"
#include "kvblocks/block_pool.h"
#include "tests/oracle/comparison.h"
#include "tests/property/check_property.h"

namespace kvblocks::property {
namespace {

constexpr int64_t kHashBlockSize = 2;
constexpr int64_t kNumTokens = 25;

// A content that tables of random blocks pretend to hold.
struct Document {
  oracle::Content content;
  std::vector<std::string> names;
  PrefixContent real;
};

std::vector<Document> Documents() {
  const auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "pool"), kHashBlockSize});
  std::vector<Document> documents;
  for (int d = 0; d < 3; ++d) {
    oracle::Content content;
    // The third shares its first half with the first.
    for (int64_t p = 0; p < kNumTokens; ++p) {
      content.tokens.push_back(static_cast<TokenId>(p + (d == 2 && p < 12 ? 0 : 100 * d)));
    }
    if (d == 1) content.cache_salt = "salt";
    auto real = PrefixContent::FromTokens(
        {.token_ids = content.tokens, .cache_salt = content.cache_salt}, hashing);
    documents.push_back({content, oracle::PrefixNames(content, kHashBlockSize), *std::move(real)});
  }
  return documents;
}

std::optional<NativeLayout> NativeLayoutOf(const BlockPool::Options& options) {
  if (options.chunks.num_chunks == 0) return std::nullopt;
  return NativeLayout{.num_chunks = options.chunks.num_chunks,
                      .pages_per_chunk = options.chunks.pages_per_chunk,
                      .class_of_group = options.chunks.class_of_group};
}

class PoolPair {
 public:
  PoolPair(const BlockPool::Options& options, int64_t num_permanent)
      : real_(BlockPool::Create(options).value()),
        model_(options.num_blocks, options.enable_caching, options.enable_events,
               options.free_order == FreeOrder::kUnhashedFirst, NativeLayoutOf(options)),
        caching_(options.enable_caching),
        documents_(Documents()) {
    const auto permanent = real_->TakePermanentBlocks(num_permanent, /*group=*/1);
    RC_ASSERT(permanent.ok());
    RC_ASSERT(*permanent == model_.TakePermanent(num_permanent, /*group=*/1));
    for (const Document& document : documents_) {
      RC_ASSERT(numbers_.Add(document.real.hashes(), document.names));
    }
    Check();
  }

  void Run(const Operation& operation) {
    Numbers numbers(operation.numbers);
    if (operation.kind < 25) {
      const int64_t k = numbers.Below(5);
      const auto group = static_cast<GroupId>(numbers.Below(3));
      if (model_.ClassOfGroup(group) < 0) return;
      RC_ASSERT(GetNewBlocks(*real_, k, group) == model_.Take(k, group));
    } else if (operation.kind < 40) {
      const std::vector<BlockId> ids = DrawIds(numbers);
      const bool valid = std::all_of(ids.begin(), ids.end(), [&](BlockId id) {
        return id >= 0 && id < real_->num_blocks() && !real_->block(id).is_permanent &&
               (id == kNullBlockId || model_.ClassOf(id) >= 0);
      });
      RC_ASSERT(real_->CheckTouchable(ids).ok() == valid);
      if (!valid) return;
      real_->Touch(ids);
      model_.Touch(ids);
    } else if (operation.kind < 60) {
      const std::vector<BlockId> ids =
          model_.is_native() && numbers.OneIn(3) ? ReferencesIntoChunk(numbers) : DrawIds(numbers);
      if (model_.Free(ids)) real_->FreeBlocks(ids);
    } else if (operation.kind < 85) {
      Register(numbers);
    } else if (operation.kind < 95) {
      const std::vector<BlockId> ids = DrawIds(numbers);
      RC_ASSERT(real_->EvictBlocks(ids).ok() == model_.Evict(ids));
    } else {
      RC_ASSERT(real_->ResetPrefixCache() == model_.Reset());
    }
    Check();
  }

  const oracle::Pool& model() const { return model_; }

 private:
  // Now and then out of range, often repeated.
  std::vector<BlockId> DrawIds(Numbers& numbers) const {
    std::vector<BlockId> ids;
    const int64_t count = numbers.Below(5);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t num_blocks = real_->num_blocks();
      ids.push_back(static_cast<BlockId>(numbers.OneIn(20) ? (numbers.OneIn(2) ? -1 : num_blocks)
                                                           : numbers.Below(num_blocks)));
      // With chunks there are more ids than pages in use: mostly the next of those.
      if (!model_.is_native() || i % 4 == 3 || ids.back() < 0) continue;
      for (BlockId id = ids.back(); id < num_blocks; ++id) {
        if (id == kNullBlockId || model_.blocks()[static_cast<size_t>(id)].ref_count == 0) continue;
        ids.back() = id;
        break;
      }
    }
    return ids;
  }

  // All references to one chunk's pages.
  std::vector<BlockId> ReferencesIntoChunk(Numbers& numbers) const {
    const PageChunks& chunks = *real_->chunks();
    const auto chunk = static_cast<int32_t>(numbers.Below(chunks.num_chunks()));
    std::vector<BlockId> ids;
    for (int32_t i = 0; i < chunks.ids_per_chunk(); ++i) {
      const BlockId id = 1 + chunk * chunks.ids_per_chunk() + i;
      const oracle::Block& block = model_.blocks()[static_cast<size_t>(id)];
      if (!block.is_permanent) ids.insert(ids.end(), static_cast<size_t>(block.ref_count), id);
    }
    return ids;
  }

  void Register(Numbers numbers) {
    const Document& document = documents_[static_cast<size_t>(numbers.Below(3))];
    const std::vector<BlockId> table = DrawIds(numbers);
    const int64_t block_size = numbers.OneIn(8) ? 3 : numbers.OneIn(3) ? 4 : 2;
    const int64_t from = numbers.Below(3);
    const int64_t to = numbers.Below(7);
    const GroupId group = static_cast<GroupId>(numbers.Below(3));
    std::vector<uint8_t> mask;
    if (numbers.OneIn(2)) {
      for (int64_t i = from; i < to; ++i) mask.push_back(static_cast<uint8_t>(numbers.Below(2)));
      if (numbers.OneIn(10)) mask.push_back(1);
    }
    std::vector<bool> keep(mask.begin(), mask.end());
    if (keep.empty()) keep.assign(static_cast<size_t>(std::max<int64_t>(0, to - from)), true);
    bool valid = block_size % kHashBlockSize == 0 && to <= static_cast<int64_t>(table.size()) &&
                 to * block_size <= static_cast<int64_t>(document.names.size()) * kHashBlockSize &&
                 static_cast<int64_t>(keep.size()) == to - from;
    std::vector<BlockId> registered;
    for (int64_t i = from; i < to && valid; ++i) {
      const BlockId id = table[static_cast<size_t>(i)];
      if (id < 0 || id >= real_->num_blocks()) {
        valid = false;
      } else if (id != kNullBlockId && keep[static_cast<size_t>(i - from)]) {
        const oracle::Block& block = model_.blocks()[static_cast<size_t>(id)];
        valid = !block.key && !block.is_permanent && model_.ClassOf(id) >= 0 &&
                model_.ClassOf(id) == model_.ClassOfGroup(group) &&
                std::count(registered.begin(), registered.end(), id) == 0;
        registered.push_back(id);
      }
    }
    if (!caching_ || !valid) return;
    real_->CacheFullBlocks(document.real, table, from, to, block_size, group, mask);
    model_.Register({.content = &document.content,
                     .prefix_names = &document.names,
                     .hash_block_size = kHashBlockSize,
                     .block_size = block_size,
                     .group = group},
                    table, from, to, keep);
  }

  void Check() {
    RC_ASSERT(oracle::PoolDifference(*real_, model_, numbers_) == "");
    RC_ASSERT(oracle::EventDifference(real_->TakeEvents(), model_.TakeEvents(), numbers_) == "");
    RC_ASSERT(real_->CheckInvariants().ok());
    for (const Document& document : documents_) {
      for (size_t i = 0; i < document.names.size(); ++i) {
        for (GroupId g : {0, 1}) {
          RC_ASSERT(real_->FindCached(document.real.hashes()[i], g) ==
                    model_.Find({document.names[i], g}));
        }
      }
    }
  }

  std::unique_ptr<BlockPool> real_;
  oracle::Pool model_;
  bool caching_;
  std::vector<Document> documents_;
  oracle::ContentNumbers numbers_;
};

// Draws the rest of the options and the operations; how many chunks changed hands.
int64_t RunBoth(int64_t num_blocks, const ChunkLayout& chunks, int64_t end_of_permanent) {
  const bool append_all = *rc::gen::arbitrary<bool>();
  const bool events = *rc::gen::arbitrary<bool>();
  const bool caching = *rc::gen::inRange<int>(0, 6) != 5;
  const int64_t permanent = *rc::gen::inRange<int64_t>(0, end_of_permanent);
  const auto operations = *Operations(100);
  PoolPair pools({.num_blocks = num_blocks,
                  .enable_caching = caching,
                  .enable_events = events,
                  .free_order = append_all ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst,
                  .chunks = chunks},
                 permanent);
  for (const Operation& operation : operations) pools.Run(operation);
  return pools.model().num_steals();
}

TEST(BlockPoolPropertyTest, AgreesWithTheOracleWithChunks) {
  int64_t steals = 0;
  CheckProperty(1500, [&] {
    ChunkLayout chunks{.num_chunks = *rc::gen::inRange<int64_t>(1, 7)};
    const int64_t num_classes = *rc::gen::inRange<int64_t>(1, 4);
    for (int64_t k = 0; k < num_classes; ++k) {
      chunks.pages_per_chunk.push_back(*rc::gen::inRange<int64_t>(1, 6));
    }
    for (int g = 0; g < 3; ++g) {
      chunks.class_of_group.push_back(
          *rc::gen::inRange<int32_t>(0, static_cast<int32_t>(num_classes)));
    }
    const int64_t most =
        *std::max_element(chunks.pages_per_chunk.begin(), chunks.pages_per_chunk.end());
    steals += RunBoth(1 + chunks.num_chunks * most, chunks, 2);
  });
  ExpectOccurred("chunks that changed hands", steals, 100);
}

TEST(BlockPoolPropertyTest, AgreesWithTheOracle) {
  CheckProperty(1500, [] {
    const int64_t num_blocks = *rc::gen::inRange<int64_t>(1, 16);
    RunBoth(num_blocks, {}, std::min<int64_t>(3, num_blocks));
  });
}

}  // namespace
}  // namespace kvblocks::property
