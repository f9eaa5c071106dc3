// Kinds of layers that a program registers, and managers for them.

#include <algorithm>
#include <memory>

#include "gtest/gtest.h"
#include "kvblocks/managers/kv_cache_manager.h"
#include "kvblocks/specs/kv_cache_kind.h"

namespace kvblocks {
namespace {

const KvCacheSpecOptions kOptions = {
    .block_size = 4, .num_kv_heads = 1, .head_size = 8, .sliding_window = 8};

absl::StatusOr<std::unique_ptr<KvCacheManager>> ManagerOf(const KvCacheKind& kind) {
  const auto spec = KvCacheSpec::Create(kind, kOptions);
  if (!spec.ok()) return spec.status();
  return KvCacheManager::Create({.num_blocks = 20, .groups = {{.spec = *spec}}},
                                {.max_model_len = 64});
}

TEST(RegisteredKindTest, IsManagedLikeTheKindItNames) {
  const auto kind = RegisterKvCacheKind(
      {.name = "windowed_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  auto manager = ManagerOf(**kind);
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_FALSE((*manager)->group(0).is_full_type());
  EXPECT_EQ((*manager)->group(0).NumSkippedTokens(20), 13);
  EXPECT_EQ((*manager)->group(0).spec().kind_name(), "windowed_kind");
}

TEST(RegisteredKindTest, ItsFactoryMakesItsManagers) {
  const auto kind = RegisterKvCacheKind(
      {.name = "patient_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  // Reuses nothing, and gives blocks up four tokens later than a window of 8 would.
  class PatientManager : public SingleTypeManager {
   public:
    PatientManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
        : SingleTypeManager(spec, options, pool, {}) {}
    int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
      for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
      return 0;
    }

   protected:
    int64_t NumUnneededTokensImpl(int64_t n) const override {
      return std::max<int64_t>(0, n - 8 + 1 - 4);
    }
  };
  const auto factory = [](const KvCacheSpec& spec, const SingleTypeManager::Options& options,
                          BlockPool* pool) -> absl::StatusOr<std::unique_ptr<SingleTypeManager>> {
    return std::make_unique<PatientManager>(spec, options, pool);
  };
  ASSERT_TRUE(SingleTypeManager::RegisterFactory(**kind, factory).ok());
  auto manager = ManagerOf(**kind);
  ASSERT_TRUE(manager.ok()) << manager.status();
  EXPECT_EQ((*manager)->group(0).NumSkippedTokens(20), 9);
  const absl::Status twice = SingleTypeManager::RegisterFactory(**kind, factory);
  EXPECT_EQ(twice.message(), "kind patient_kind: got a second manager, expected one");
}

TEST(RegisteredKindTest, WhatTheFactoryRefusesCreateRefuses) {
  const auto kind = RegisterKvCacheKind(
      {.name = "refused_kind", .managed_like = KvCacheSpecKind::kSlidingWindow});
  ASSERT_TRUE(kind.ok()) << kind.status();
  ASSERT_TRUE(SingleTypeManager::RegisterFactory(
                  **kind,
                  [](const KvCacheSpec&, const SingleTypeManager::Options&,
                     BlockPool*) -> absl::StatusOr<std::unique_ptr<SingleTypeManager>> {
                    return absl::InvalidArgumentError("not today");
                  })
                  .ok());
  EXPECT_EQ(ManagerOf(**kind).status().message(), "not today");
}

}  // namespace
}  // namespace kvblocks
