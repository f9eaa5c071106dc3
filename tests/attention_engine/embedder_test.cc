// A scheduler of somebody else's, in one screen and on public API alone, wrapped with the verifier:
// what an embedder has to do.

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_cache_verifier.h"
#include "tests/attention_engine/engine.h"
#include "tests/group_specs.h"

namespace kvblocks::testing {
namespace {

// First come, first served, one request after the other, with a chunk of the prompt per step.
class TinyScheduler {
 public:
  TinyScheduler(KvCacheManager* manager, attention::KvCacheVerifier* verifier)
      : manager_(manager), verifier_(verifier) {}

  // Generates `num_outputs` tokens; a stop at the first wrong number.
  absl::Status Serve(const std::string& name, std::vector<int64_t> tokens, int64_t num_outputs) {
    const std::vector<TokenId> prompt(tokens.begin(), tokens.end());
    auto request = manager_->NewRequest({.id = name, .content = {.token_ids = prompt}}).value();
    const uint64_t id = next_id_++;
    ComputedBlocks hits = manager_->GetComputedBlocks(*request).value();
    num_hit_tokens_ += hits.num_tokens();
    bool is_first = true;
    while (num_outputs > 0) {
      const int64_t computed = is_first ? hits.num_tokens() : request->num_computed_tokens();
      const int64_t chunk = std::min<int64_t>(8, request->num_tokens() - computed);
      const auto slots = manager_->AllocateSlots(
          *request, {.num_new_tokens = chunk, .computed_blocks = is_first ? &hits : nullptr});
      if (!slots.ok()) return slots.status();
      if (!slots->has_value()) return absl::ResourceExhaustedError("no blocks");
      is_first = false;

      // The step.
      std::vector<absl::Span<const int32_t>> tables;
      for (GroupId g = 0; g < manager_->num_groups(); ++g) {
        tables.push_back(manager_->GetBlocks(*request, g));
      }
      const absl::Status status = verifier_->OnStep({{.id = id,
                                                      .name = name,
                                                      .num_computed = computed,
                                                      .num_scheduled = chunk,
                                                      .tokens = tokens,
                                                      .block_tables = tables}});
      if (!status.ok()) return status;

      request->set_num_computed_tokens(computed + chunk);
      if (computed + chunk < request->num_tokens()) continue;
      tokens.push_back(1'000 * static_cast<int64_t>(id) + num_outputs--);
      if (absl::Status appended =
              request->AppendOutputTokens({static_cast<TokenId>(tokens.back())});
          !appended.ok()) {
        return appended;
      }
    }
    if (absl::Status status = manager_->Free(*request); !status.ok()) return status;
    return verifier_->Release(id);
  }

  int64_t num_hit_tokens() const { return num_hit_tokens_; }

 private:
  KvCacheManager* manager_;
  attention::KvCacheVerifier* verifier_;
  uint64_t next_id_ = 1;
  int64_t num_hit_tokens_ = 0;
};

TEST(EmbedderTest, AnOutsideSchedulerIsVerifiedThroughPublicApi) {
  const KvCacheConfig config{.num_blocks = 40,
                             .groups = {{.spec = Full(4), .layer_names = {"a"}},
                                        {.spec = Window(4, 10), .layer_names = {"b"}}}};
  auto manager = KvCacheManager::Create(config, {.max_model_len = 64, .hash_seed = "s"}).value();
  auto verifier = attention::KvCacheVerifier::Create(
                      {.num_blocks = config.num_blocks,
                       .groups = GroupsOf(*manager, {0.5f, -1.0f}),
                       .ops = &attention::CpuReference(),
                       .use_of_block = [&](int32_t block) { return UseOfBlock(*manager, block); }})
                      .value();
  TinyScheduler scheduler(manager.get(), verifier.get());

  std::vector<int64_t> prompt;
  for (int64_t i = 0; i < 22; ++i) prompt.push_back(i);
  std::vector<int64_t> longer = prompt;
  for (int64_t i = 0; i < 9; ++i) longer.push_back(100 + i);
  EXPECT_TRUE(scheduler.Serve("first", prompt, 12).ok());
  EXPECT_TRUE(scheduler.Serve("again", prompt, 3).ok());
  EXPECT_TRUE(scheduler.Serve("longer", longer, 20).ok());

  // 20 of the first 22 tokens are in full blocks, twice.
  EXPECT_EQ(scheduler.num_hit_tokens(), 40);
  const attention::VerifierStats& stats = verifier->stats();
  EXPECT_EQ(stats.num_hit_tokens, 40);
  // All 20 in the full group, the 9 before the next query in the window.
  EXPECT_EQ(stats.num_rows_read_back, 2 * (20 + 9));
  // The last output of each needs no computing.
  EXPECT_EQ(stats.num_tokens, (22 + 11) + (2 + 2) + (11 + 19));
  EXPECT_EQ(stats.num_rows_attended, 2 * stats.num_tokens);
  EXPECT_FALSE(verifier->failure().has_value());
}

// Two requests with encoders of their own, one after the other in a pool that holds one: what the
// first left in the encoder's blocks is void for the second.
TEST(EmbedderTest, CrossAttentionReadsTheBlocksOfItsOwnEncoder) {
  const KvCacheConfig config{
      .num_blocks = 8,
      .groups = {{.spec = Full(4), .layer_names = {"own"}},
                 {.spec = *CrossAttentionSpec::Create(
                      {.block_size = 4, .num_kv_heads = 1, .head_size = 8}),
                  .layer_names = {"cross"}}}};
  auto manager =
      KvCacheManager::Create(
          config, {.max_model_len = 64, .enable_caching = false, .max_encoder_tokens = 16})
          .value();
  auto verifier = attention::KvCacheVerifier::Create(
                      {.num_blocks = config.num_blocks,
                       .groups = {{.name = "own", .block_size = 4},
                                  {.name = "cross", .block_size = 4, .is_cross = true}},
                       .ops = &attention::CpuReference(),
                       .use_of_block = [&](int32_t block) { return UseOfBlock(*manager, block); }})
                      .value();
  for (uint64_t id = 1; id <= 2; ++id) {
    std::vector<int64_t> encoder(9 + id, static_cast<int64_t>(id)), tokens(12, 7);
    const std::vector<TokenId> prompt(6, 7);
    auto request = manager->NewRequest({.id = "r", .content = {.token_ids = prompt}}).value();
    for (int64_t computed = 0, n = 6; computed < 12; computed += n, n = 1) {
      const TokenId sampled = 7;
      if (computed > 0) {
        ASSERT_TRUE(request->AppendOutputTokens({&sampled, 1}).ok());
      }
      const auto slots = manager->AllocateSlots(
          *request, {.num_new_tokens = n,
                     .num_encoder_tokens =
                         computed == 0 ? static_cast<int64_t>(encoder.size()) : 0});
      ASSERT_TRUE(slots.ok() && slots->has_value()) << slots.status();
      const std::vector<absl::Span<const int32_t>> tables = {manager->GetBlocks(*request, 0),
                                                             manager->GetBlocks(*request, 1)};
      ASSERT_EQ(verifier->OnStep({{.id = id,
                                   .name = "r",
                                   .num_computed = computed,
                                   .num_scheduled = n,
                                   .tokens = tokens,
                                   .block_tables = tables,
                                   .encoder_tokens = encoder}}),
                absl::OkStatus());
      request->set_num_computed_tokens(computed + n);
    }
    ASSERT_TRUE(manager->Free(*request).ok());
    ASSERT_TRUE(verifier->Release(id).ok());
  }
  EXPECT_EQ(verifier->stats().num_rows_attended, 2 * 24);
  EXPECT_EQ(verifier->stats().num_rows_written, 24 + 10 + 11);
}

}  // namespace
}  // namespace kvblocks::testing
