#include "kvblocks/kv_cache_manager_config.h"

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "specs/config/kv_cache_config.pb.h"

namespace kvblocks {
namespace {

constexpr char kCache[] =
    "cache { num_blocks: 64 groups { num_layers: 2 spec { full_attention {\n"
    "  block_size: 16 num_kv_heads: 1 head_size: 8 dtype: \"bf16\" } } } }\n";

std::string ErrorOf(const std::string& text) {
  const auto config = ReadKvCacheManagerConfig(text, "manager.txtpb");
  return config.ok() ? "accepted" : std::string(config.status().message());
}

TEST(KvCacheManagerConfigTest, LeavesDefaultsWhereTheFileSaysNothing) {
  const auto config =
      ReadKvCacheManagerConfig(std::string(kCache) + "options { max_model_len: 512 }", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  const KvCacheManagerOptions defaults;
  EXPECT_EQ(config->options.max_model_len, 512);
  EXPECT_EQ(config->options.enable_caching, defaults.enable_caching);
  EXPECT_EQ(config->options.log_stats, defaults.log_stats);
  EXPECT_EQ(config->options.free_order, defaults.free_order);
  EXPECT_EQ(config->options.hash_algorithm, defaults.hash_algorithm);
  EXPECT_EQ(config->options.block_count_formula, defaults.block_count_formula);
  EXPECT_EQ(config->options.semantics, Semantics::Vllm033());
  EXPECT_TRUE(KvCacheManager::Create(config->cache, config->options).ok());
}

TEST(KvCacheManagerConfigTest, CarriesEveryOption) {
  const std::string options =
      R"({"maxModelLen": "512", "max_in_flight_tokens": 64, "enable_caching": false,
          "use_eagle": true, "enable_events": true, "log_stats": false, "watermark": 0.25,
          "free_order": "append_all", "hash_algorithm": "xxh3_128", "hash_seed": "s",
          "compare_tokens_on_hit": true, "block_count_formula": "upstream",
          "max_encoder_tokens": 33, "retention_interval": 48,
          "register_unreachable_blocks": true, "partial_hits": true,
          "lookup_history_blocks": 7, "semantics": "vllm-0.25",
          "semantics_switches": {"trusts_hits": true},
          "num_hash_lookahead_tokens": 2, "prefill_lookahead_tokens": 3,
          "report_new_blocks": true,
          "decode_context_parallel": 2, "prefill_context_parallel": 3,
          "checkpoint_alignment": 4, "eviction_policy": "arc",
          "max_retained_share": 0.5})";
  const auto config = ReadKvCacheManagerConfig(
      R"({"cache": {"num_blocks": 64, "groups": []}, "options": )" + options + "}", "f");
  ASSERT_TRUE(config.ok()) << config.status();
  const KvCacheManagerOptions& o = config->options;
  EXPECT_EQ(o.max_model_len, 512);
  EXPECT_EQ(o.max_in_flight_tokens, 64);
  EXPECT_FALSE(o.enable_caching);
  EXPECT_TRUE(o.use_eagle);
  EXPECT_TRUE(o.enable_events);
  EXPECT_FALSE(o.log_stats);
  EXPECT_EQ(o.watermark, 0.25);
  EXPECT_EQ(o.free_order, FreeOrder::kAppendAll);
  EXPECT_EQ(o.hash_algorithm, HashAlgorithm::kXxh3_128);
  EXPECT_EQ(o.hash_seed, "s");
  EXPECT_TRUE(o.compare_tokens_on_hit);
  EXPECT_EQ(o.block_count_formula, BlockCountFormula::kUpstream);
  EXPECT_EQ(o.max_encoder_tokens, 33);
  EXPECT_TRUE(o.register_unreachable_blocks);
  EXPECT_TRUE(o.partial_hits);
  EXPECT_EQ(o.lookup_history_blocks, 7);
  EXPECT_TRUE(o.report_new_blocks);
  EXPECT_EQ(o.decode_context_parallel, 2);
  EXPECT_EQ(o.prefill_context_parallel, 3);
  EXPECT_EQ(o.checkpoint_alignment, 4);
  EXPECT_EQ(o.eviction_policy.name, "arc");
  EXPECT_EQ(o.max_retained_share, 0.5);
  Semantics semantics = Semantics::Vllm025();
  semantics.retention_interval = 48;
  semantics.trusts_hits = true;
  EXPECT_EQ(o.semantics, semantics);
  EXPECT_EQ(o.num_hash_lookahead_tokens, 2);
  EXPECT_EQ(o.prefill_lookahead_tokens, 3);
  // A new option must be read above, too.
  EXPECT_EQ(config::v1::KvCacheManagerOptions::descriptor()->field_count(), 27);
}

TEST(KvCacheManagerConfigTest, RetentionCanBeTurnedOff) {
  const auto config = ReadKvCacheManagerConfig(
      std::string(kCache) + "options { max_model_len: 1 retention_interval: -1 }", "f",
      ConfigSyntax::kText);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->options.semantics.retention_interval, std::nullopt);
  EXPECT_EQ(ErrorOf(std::string(kCache) + "options { max_model_len: 1\n semantics: \"vllm-9\" }"),
            "manager.txtpb:4:2: error: options.semantics: got \"vllm-9\", expected vllm-0.25, "
            "vllm-0.33 or vllm-0.33-exactly");
}

TEST(KvCacheManagerConfigTest, KnowsEveryHashAlgorithm) {
  const std::pair<const char*, HashAlgorithm> names[] = {
      {"sha256", HashAlgorithm::kSha256},
      {"xxh3_128", HashAlgorithm::kXxh3_128},
      {"sha256_cbor", HashAlgorithm::kSha256Cbor},
      {"xxhash_cbor", HashAlgorithm::kXxh3_128Cbor}};
  for (const auto& [name, algorithm] : names) {
    const auto config = ReadKvCacheManagerConfig(
        std::string(kCache) + "options { max_model_len: 1 hash_algorithm: \"" + name + "\" }", "f");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->options.hash_algorithm, algorithm);
    EXPECT_EQ(HashAlgorithmName(algorithm), name);
  }
}

TEST(KvCacheManagerConfigTest, EverySwitchOfTheSemanticsHasAField) {
  EXPECT_EQ(config::v1::SemanticsSwitches::descriptor()->field_count(),
            std::size(kSemanticsSwitches));
  for (const auto& [name, member] : kSemanticsSwitches) {
    for (const bool value : {false, true}) {
      const auto config = ReadKvCacheManagerConfig(
          absl::StrCat(std::string(kCache), "options { max_model_len: 1 semantics_switches { ",
                       name, ": ", value, " } }"),
          "f");
      ASSERT_TRUE(config.ok()) << config.status();
      Semantics expected;
      expected.*member = value;
      EXPECT_EQ(config->options.semantics, expected) << name;
    }
  }
}

TEST(KvCacheManagerConfigTest, RefusesWithThePlace) {
  EXPECT_EQ(ErrorOf("options { max_model_len: 1 }"),
            "manager.txtpb:1:1: error: cache: got nothing, expected a KvCacheConfig");
  EXPECT_EQ(ErrorOf(kCache),
            "manager.txtpb:1:1: error: options.max_model_len: got nothing, expected at least 1");
  EXPECT_EQ(ErrorOf(std::string(kCache) + "options { max_model_len: 1\n hash_algorithm: \"md5\" }"),
            "manager.txtpb:4:2: error: options.hash_algorithm: got \"md5\", expected sha256, "
            "xxh3_128, sha256_cbor or xxhash_cbor");
  EXPECT_EQ(
      ErrorOf(std::string(kCache) + "options { max_model_len: 1\n eviction_policy: \"sieve\" }"),
      "manager.txtpb:4:2: error: options.eviction_policy: got \"sieve\", expected "
      "arc|hazard|lru|priority|ttl");
  EXPECT_EQ(ErrorOf("cache { num_blocks: 0 }"),
            "manager.txtpb:1:9: error: cache.num_blocks: got 0, expected a number from 1 to "
            "2147483646");
}

}  // namespace
}  // namespace kvblocks
