#include "kvblocks/model_facts.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "checks/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "specs/catalogue/pipeline_stages.h"

namespace kvblocks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelFacts Model(const std::string& name) {
  const auto model = Catalogue::BuiltIn().FindModel(name);
  EXPECT_TRUE(model.ok()) << model.status();
  return *model;
}

std::vector<LayerCache> Caches(const std::string& name, const LayerCacheOptions& options = {}) {
  const auto caches = LayerCaches(Model(name), options);
  EXPECT_TRUE(caches.ok()) << name << ": " << caches.status();
  return caches.ok() ? *caches : std::vector<LayerCache>();
}

const KvCacheSpec& Spec(const std::vector<LayerCache>& caches, const std::string& name) {
  const auto it = std::find_if(caches.begin(), caches.end(),
                               [&](const LayerCache& cache) { return cache.name == name; });
  EXPECT_NE(it, caches.end()) << name;
  return it->spec;
}

int64_t Page(const std::vector<LayerCache>& caches, const std::string& name) {
  return Spec(caches, "model.layers." + name).page_bytes();
}

bool IsUnbounded(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kFullAttention ||
         spec.kind() == KvCacheSpecKind::kMlaAttention;
}

// States and rings cost nothing per token.
double BytesPerToken(const std::vector<LayerCache>& caches, bool unbounded_only) {
  double bytes = 0;
  for (const LayerCache& cache : caches) {
    if (cache.spec.get_if<MambaSpec>() != nullptr) continue;
    if (cache.spec.kind() == KvCacheSpecKind::kRing) continue;
    if (unbounded_only && !IsUnbounded(cache.spec)) continue;
    bytes +=
        static_cast<double>(cache.spec.page_bytes()) / static_cast<double>(cache.spec.block_size());
  }
  return bytes;
}

// P-10.
TEST(LayerCachesTest, BytesPerTokenOfEveryModelAreThePublishedOnes) {
  int64_t num_figures = 0;
  for (const auto& [name, model] : Catalogue::BuiltIn().models()) {
    const PublishedCacheFacts& published = model.published_cache;
    if (published.bf16_all_layers) {
      EXPECT_EQ(BytesPerToken(Caches(name), false), *published.bf16_all_layers) << name;
      ++num_figures;
    }
    if (!published.bf16_unbounded_layers) {
      EXPECT_EQ(name, "deepseek-v4.1-flash");  // nobody published any
      continue;
    }
    EXPECT_EQ(BytesPerToken(Caches(name), true), *published.bf16_unbounded_layers) << name;
    if (published.fp8_ds_mla_unbounded_layers) {
      EXPECT_EQ(BytesPerToken(Caches(name, {.cache_dtype = "fp8_ds_mla"}), true),
                *published.fp8_ds_mla_unbounded_layers)
          << name;
      ++num_figures;
    }
  }
  EXPECT_EQ(num_figures, 27 + 3);
}

TEST(LayerCachesTest, NamesAreUniqueAndInLayerOrder) {
  for (const auto& [name, model] : Catalogue::BuiltIn().models()) {
    std::set<std::string> names;
    int64_t last_layer = 0;
    for (const LayerCache& cache : Caches(name, {.num_draft_layers = 2})) {
      EXPECT_TRUE(names.insert(cache.name).second) << cache.name;
      const int64_t layer = std::stoll(cache.name.substr(std::string("model.layers.").size()));
      EXPECT_GE(layer, last_layer) << name;
      EXPECT_EQ(cache.is_draft, layer >= model.num_layers()) << cache.name;
      last_layer = layer;
    }
    EXPECT_EQ(last_layer, model.num_layers() + 1) << name;
  }
}

TEST(LayerCachesTest, LettersBecomeTheirKinds) {
  const auto gemma = Caches("gemma-3-27b");
  ASSERT_EQ(gemma.size(), 62);
  EXPECT_EQ(gemma[0].name, "model.layers.0.attn");
  EXPECT_EQ(gemma[0].spec.sliding_window(), 1024);
  EXPECT_EQ(gemma[5].spec.kind(), KvCacheSpecKind::kFullAttention);
  EXPECT_EQ(gemma[5].spec.page_bytes(), 131072);  // WE-A8
  const auto scout = Caches("llama-4-scout");
  EXPECT_EQ(scout[0].spec.attention_chunk_size(), 8192);
  EXPECT_EQ(scout[3].spec.kind(), KvCacheSpecKind::kFullAttention);
}

// KS-95: a sink bias is no sink spec.
TEST(LayerCachesTest, SinkBiasNeedsNoMemory) {
  ASSERT_TRUE(Model("gpt-oss-20b").sink_bias);
  for (const LayerCache& cache : Caches("gpt-oss-20b")) {
    EXPECT_EQ(cache.spec.sink_length(), 0);
    EXPECT_NE(cache.spec.kind(), KvCacheSpecKind::kSinkFullAttention);
    EXPECT_EQ(cache.spec.page_bytes(), 32768);  // WE-A7
  }
}

TEST(LayerCachesTest, SecondGeometryIsThatOfFullLayers) {
  const auto caches = Caches("gemma-4", {.block_size = 16, .cache_dtype = "int8_per_token_head"});
  EXPECT_EQ(Page(caches, "5.attn"), 33024);  // WE-C22
  EXPECT_EQ(Page(caches, "0.attn"), 66560);
}

// KS-15.
TEST(LayerCachesTest, RanksShareHeadsAndEachHoldsOneAtLeast) {
  const auto heads = [](const std::string& model, int64_t ranks) {
    return Caches(model, {.tensor_parallel = ranks}).back().spec.num_kv_heads();
  };
  EXPECT_EQ(heads("llama-3.1-70b", 1), 8);
  EXPECT_EQ(heads("llama-3.1-70b", 4), 2);
  EXPECT_EQ(heads("llama-3.1-70b", 8), 1);
  EXPECT_EQ(heads("llama-3.1-70b", 16), 1);
  EXPECT_EQ(Page(Caches("llama-3.1-70b", {.tensor_parallel = 8}), "0.attn"), 8192);  // WE-A11
  EXPECT_EQ(Page(Caches("deepseek-v3", {.tensor_parallel = 8}), "0.attn"), 73728);
  EXPECT_EQ(Page(Caches("deepseek-v4-flash", {.tensor_parallel = 8}), "0.swa"),
            Page(Caches("deepseek-v4-flash"), "0.swa"));
}

TEST(LayerCachesTest, LatentRows) {
  EXPECT_EQ(Page(Caches("deepseek-v3"), "60.attn"), 73728);                         // WE-A12
  EXPECT_EQ(Page(Caches("deepseek-v3", {.block_size = 16}), "0.attn"), 18432);      // WE-A13
  EXPECT_EQ(Page(Caches("deepseek-v3", {.cache_dtype = "fp8"}), "0.attn"), 36864);  // WE-A14
  const auto sparse = Caches("deepseek-v3.2", {.cache_dtype = "fp8_ds_mla"});
  ASSERT_EQ(sparse.size(), 122);
  EXPECT_EQ(Page(sparse, "7.attn"), 41984);    // WE-A15
  EXPECT_EQ(Page(sparse, "7.indexer"), 8448);  // WE-A16
  EXPECT_EQ(Spec(sparse, "model.layers.7.indexer").dtype(), DataType::kUint8);
  EXPECT_EQ(Spec(sparse, "model.layers.7.indexer").block_size(), 64);
  EXPECT_EQ(Page(Caches("deepseek-v3.2", {.cache_dtype = "nvfp4_ds_mla"}), "7.attn"), 64 * 352);
  // Sparse rows know one fp8 format.
  EXPECT_EQ(Caches("deepseek-v3.2", {.cache_dtype = "fp8"}), sparse);
}

TEST(LayerCachesTest, CompressedPages) {
  const auto flash = Caches("deepseek-v4-flash", {.cache_dtype = "fp8_ds_mla"});
  EXPECT_EQ(Page(flash, "2.attn"), 37440);                     // WE-A17
  EXPECT_EQ(Page(flash, "3.attn"), 1728);                      // WE-A18
  EXPECT_EQ(Page(flash, "2.indexer"), 8640);                   // WE-A19
  EXPECT_EQ(Page(flash, "0.swa"), 37440);                      // WE-A20
  EXPECT_EQ(Page(flash, "2.compressor_state"), 32832);         // WE-A21
  EXPECT_EQ(Page(flash, "2.indexer_compressor_state"), 8640);  // WE-A22
  EXPECT_EQ(Page(flash, "3.compressor_state"), 32832);         // WE-A23
  EXPECT_EQ(Caches("deepseek-v4-flash", {.cache_dtype = "fp8"}), flash);
  const auto plain = Caches("deepseek-v4-flash");
  EXPECT_EQ(Page(plain, "2.attn"), 65536);  // WE-A24
  EXPECT_EQ(Page(plain, "3.attn"), 2048);
  EXPECT_EQ(Page(plain, "2.indexer"), 8704);
  EXPECT_EQ(Page(plain, "2.compressor_state"), 32768);
  EXPECT_EQ(Page(plain, "2.indexer_compressor_state"), 8192);
}

// KS-11: a layer without compression has no main cache.
TEST(LayerCachesTest, SubCachesOfALayerStayInOrder) {
  std::vector<std::string> names;
  for (const LayerCache& cache : Caches("deepseek-v4-flash")) {
    if (names.size() < 10) names.push_back(cache.name.substr(std::string("model.layers.").size()));
  }
  EXPECT_THAT(names,
              ElementsAre("0.swa", "1.swa", "2.swa", "2.attn", "2.indexer", "2.compressor_state",
                          "2.indexer_compressor_state", "3.swa", "3.attn", "3.compressor_state"));
}

// Caches and page bytes: the MLA caches, then the windows' buckets as they first occur.
using Buckets = std::vector<std::pair<int64_t, int64_t>>;
Buckets BucketsOf(const std::vector<LayerCache>& caches) {
  Buckets buckets(1);
  std::vector<std::pair<int64_t, int64_t>> keys(1);
  for (const LayerCache& cache : caches) {
    std::pair<int64_t, int64_t> key;
    if (const auto window = cache.spec.sliding_window()) key = {cache.spec.block_size(), *window};
    size_t at = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (at == keys.size()) {
      keys.push_back(key);
      buckets.emplace_back();
    }
    ++buckets[at].first;
    buckets[at].second += cache.spec.page_bytes();
  }
  return buckets;
}

// WE-C14, C15, C18 and C19, before the windows' bucket is distributed into two groups.
TEST(LayerCachesTest, CompressedModelsRegisterBucketsInTheOrderOfTheirGroups) {
  EXPECT_EQ(BucketsOf(Caches("deepseek-v4-flash", {.cache_dtype = "fp8_ds_mla"})),
            (Buckets{{62, 1002240}, {22 + 21, 823680 + 786240}, {42, 870912}, {20, 656640}}));
  EXPECT_EQ(BucketsOf(Caches("deepseek-v4-pro", {.cache_dtype = "fp8_ds_mla"})),
            (Buckets{{91, 1435968}, {31 + 30, 1160640 + 1123200}, {31, 1017792}, {60, 1244160}}));
  EXPECT_EQ(BucketsOf(Caches("deepseek-v4-flash"))[0].second, 1600000);  // WE-C20
}

TEST(LayerCachesTest, StatesAreThoseOfTheModelWhateverTheFormat) {
  const auto caches = Caches("qwen3.5-35b-a3b", {.cache_dtype = "fp8",
                                                 .mamba_cache_mode = MambaCacheMode::kAlign,
                                                 .num_speculative_blocks = 2});
  EXPECT_EQ(Page(caches, "0.linear_attn"), 2146304);  // WE-A26
  EXPECT_EQ(Page(caches, "3.attn"), 16 * 2 * 2 * 256);
  const auto* state = Spec(caches, "model.layers.0.linear_attn").get_if<MambaSpec>();
  ASSERT_NE(state, nullptr);
  EXPECT_EQ(state->options().cache_mode, MambaCacheMode::kAlign);
  EXPECT_EQ(state->options().num_speculative_blocks, 2);
  EXPECT_EQ(Page(Caches("qwen3.5-35b-a3b", {.tensor_parallel = 4}), "0.linear_attn"), 2146304 / 4);
}

TEST(LayerCachesTest, DraftLayersAttendLikeUnboundedOnes) {
  const auto last = [](const std::string& model) {
    return Caches(model, {.num_draft_layers = 1}).back();
  };
  EXPECT_EQ(last("gpt-oss-120b").name, "model.layers.36.attn");
  EXPECT_EQ(last("gpt-oss-120b").spec.kind(), KvCacheSpecKind::kFullAttention);
  EXPECT_EQ(last("deepseek-v3").spec.get_if<MlaAttentionSpec>()->options().is_draft, true);
  EXPECT_EQ(last("deepseek-v3.2").name, "model.layers.61.indexer");
  EXPECT_EQ(last("deepseek-v4-flash").name, "model.layers.43.swa");  // KS-70
  EXPECT_EQ(last("qwen3.5-35b-a3b").spec.kind(), KvCacheSpecKind::kFullAttention);
  EXPECT_EQ(last("mistral-7b-v0.1").spec.kind(), KvCacheSpecKind::kSlidingWindow);
}

// V-46: DeepSeek-V4.1's layers keep a window each, which is replayed; four of them keep rows for
// those behind, and the three that make a row of two tokens keep a ring.
TEST(LayerCachesTest, SharedRowsAreStoredOnce) {
  const auto caches = Caches("deepseek-v4.1-flash", {.cache_dtype = "fp8"});
  std::vector<std::string> others;
  for (const LayerCache& cache : caches) {
    if (!cache.name.ends_with(".swa")) others.push_back(cache.name.substr(13));
  }
  EXPECT_THAT(others, ElementsAre("2.attn", "2.indexer", "2.compressor_state", "8.attn",
                                  "8.indexer", "8.compressor_state", "14.attn", "14.indexer",
                                  "14.compressor_state", "20.attn", "20.indexer"));
  EXPECT_EQ(caches.size(), 40 + others.size());
  const KvCacheSpec& window = Spec(caches, "model.layers.39.swa");
  EXPECT_EQ(window.page_bytes(), 19008);  // 32 rows of 584 bytes, in steps of 576
  EXPECT_EQ(window.replay_tokens(), 128);
  EXPECT_FALSE(window.is_prefix_cacheable());
  EXPECT_EQ(Page(caches, "2.attn"), 37440);
  EXPECT_EQ(Page(caches, "2.indexer"), 8640);
  EXPECT_EQ(Spec(caches, "model.layers.2.attn").block_size(), 128);
  EXPECT_EQ(Spec(caches, "model.layers.20.attn").block_size(), 64);
  const KvCacheSpec& ring = Spec(caches, "model.layers.8.compressor_state");
  EXPECT_EQ(ring.kind(), KvCacheSpecKind::kRing);
  EXPECT_EQ(ring.block_size(), 8);
  EXPECT_EQ(ring.page_bytes(), 32768);
  // 3 * (37,440 + 8,640) / 128 + (37,440 + 8,640) / 64.
  EXPECT_EQ(BytesPerToken(caches, /*unbounded_only=*/true), 1800);
}

TEST(LayerCachesTest, RingsHaveRoomForDrafts) {
  const auto rows = [](int64_t num_draft_tokens) {
    const auto caches = Caches("deepseek-v4.1-flash", {.num_draft_tokens = num_draft_tokens});
    return Spec(caches, "model.layers.2.compressor_state").block_size();
  };
  EXPECT_EQ(rows(0), 8);
  EXPECT_EQ(rows(6), 8);
  EXPECT_EQ(rows(7), 16);
  EXPECT_EQ(rows(15), 32);
}

TEST(LayerCachesTest, DraftLayersReplayTheirWindowsToo) {
  const auto caches = Caches("deepseek-v4.1-flash", {.num_draft_layers = 3});
  EXPECT_EQ(caches.back().name, "model.layers.42.swa");
  EXPECT_TRUE(caches.back().is_draft);
  EXPECT_FALSE(caches.back().spec.is_prefix_cacheable());
}

TEST(LayerCachesTest, ReadersNeedRowsInFrontOfThem) {
  ModelFacts model = Model("deepseek-v4.1-flash");
  model.layer_pattern = "WR2R";
  model.experts->num_layers = 4;
  EXPECT_THAT(LayerCaches(model, {}).status().message(),
              HasSubstr("layer_pattern: got R as layer 1, expected a layer of 2 or 1"));
}

TEST(LayerCachesTest, CheckpointsOfStatesAreAskedFor) {
  // V-45
  const auto caches = Caches(
      "qwen3.5-35b-a3b", {.mamba_cache_mode = MambaCacheMode::kAlign, .num_checkpoint_blocks = 1});
  EXPECT_EQ(Spec(caches, "model.layers.0.linear_attn").options().num_checkpoint_blocks, 1);
}

// KS-12.
TEST(LayerCachesTest, LayersThatReadAnotherOnesCacheHaveNone) {
  ModelFacts model = Model("gemma-3-27b");
  model.num_kv_shared_layers = 20;
  EXPECT_EQ(LayerCaches(model, {})->size(), 42);
  EXPECT_EQ(LayerCaches(model, {})->back().name, "model.layers.41.attn");
}

TEST(LayerCachesTest, BadOptionsAreRefusedByField) {
  const std::tuple<const char*, LayerCacheOptions, const char*, const char*> bad[] = {
      {"llama-3.1-8b", {.block_size = 0}, "block_size", "got 0"},
      {"llama-3.1-8b", {.tensor_parallel = 0}, "tensor_parallel", "1 to 1024"},
      {"llama-3.1-8b", {.tensor_parallel = 3}, "tensor_parallel", "multiple of the 8 KV heads"},
      {"gemma-4", {.tensor_parallel = 3}, "tensor_parallel", "8 KV heads"},
      {"qwen3.5", {.tensor_parallel = 64}, "tensor_parallel", "32 rows of state ssm"},
      {"deepseek-v4.1", {.num_draft_tokens = -1}, "num_draft_tokens", "0 to 1024"},
      {"llama-3.1-8b", {.num_draft_layers = -1}, "num_draft_layers", "0 to 10000"},
      {"llama-3.1-8b", {.cache_dtype = "fp7"}, "cache_dtype", "\"fp7\""},
      {"llama-3.1-8b", {.cache_dtype = "fp8_ds_mla"}, "cache_dtype", "no layer stores latent"},
      {"deepseek-v3.2", {.cache_dtype = "nvfp4"}, "cache_dtype", "fp8_ds_mla"},
      {"deepseek-v4-flash", {.cache_dtype = "nvfp4_ds_mla"}, "cache_dtype", "no other format"},
      {"deepseek-v4-pro", {.block_size = 16}, "block_size", "belong to the model"},
      {"llama-4-scout",
       {.block_size = 48},
       "model.layers.0.attn.attention_chunk_size",
       "block_size 48"},
  };
  for (const auto& [model, options, field, message] : bad) {
    const auto caches = LayerCaches(Model(model), options);
    ASSERT_EQ(caches.status().code(), absl::StatusCode::kInvalidArgument) << model << field;
    EXPECT_THAT(caches.status().message(), HasSubstr(message));
    const std::string found = FieldOfError(caches.status()).value_or("none");
    EXPECT_EQ(found, field) << caches.status();
  }
}

TEST(LayerCachesTest, RowsThatAFormatIsNotMadeForAreRefused) {
  ModelFacts model = Model("deepseek-v3");
  model.latent->kv_lora_rank = 256;
  EXPECT_THAT(LayerCaches(model, {.cache_dtype = "fp8_ds_mla"}).status().message(),
              HasSubstr("mla: got 320 elements per row, expected 576"));
  model = Model("deepseek-v4-flash");
  model.compressed->row_bytes_fp8_ds_mla = 600;
  EXPECT_THAT(LayerCaches(model, {.cache_dtype = "fp8"}).status().message(),
              HasSubstr("got 600, expected 584"));
  model.num_heads = 0;
  EXPECT_THAT(LayerCaches(model, {}).status().message(), HasSubstr("num_heads: got 0"));
}

// --- Pipeline stages (SM-28) ---

TEST(PipelineStagesTest, LayersLeftOverGoBeforeTheLastStage) {
  EXPECT_EQ(PipelineStages(32, 1), (std::vector<int64_t>{0, 32}));
  EXPECT_EQ(PipelineStages(32, 2), (std::vector<int64_t>{0, 16, 32}));
  EXPECT_EQ(PipelineStages(32, 3), (std::vector<int64_t>{0, 11, 22, 32}));
  EXPECT_EQ(PipelineStages(32, 5), (std::vector<int64_t>{0, 6, 12, 19, 26, 32}));
}

TEST(PipelineStagesTest, StagesTogetherAreTheModel) {
  for (const char* name :
       {"llama-3.1-8b", "gpt-oss-120b", "deepseek-v3", "qwen3.5", "gemma-3-27b"}) {
    SCOPED_TRACE(name);
    const ModelFacts model = Model(name);
    for (const int64_t num_stages : {2, 3, 4}) {
      std::string pattern;
      double bytes = 0, active = 0;
      int64_t expert_layers = 0;
      for (int64_t stage = 0; stage < num_stages; ++stage) {
        const ModelFacts part = StageFacts(model, num_stages, stage);
        EXPECT_TRUE(Validate(part).ok()) << Validate(part);
        pattern += part.layer_pattern;
        bytes += part.weight_bytes();
        active += part.active_params_b;
        if (part.experts) expert_layers += part.experts->num_layers;
      }
      EXPECT_EQ(pattern, model.layer_pattern);
      EXPECT_EQ(expert_layers, model.experts ? model.experts->num_layers : 0);
      // With tied embeddings two stages have the one table.
      const double table = static_cast<double>(model.hidden_size * model.vocab_size) / 1e9;
      const double tables = model.tied_embeddings ? 2 : 1;
      EXPECT_NEAR(bytes / 1e9,
                  model.weight_bytes() / 1e9 + (tables - 1) * table * model.bytes_per_param,
                  0.002 * bytes / 1e9);
      // Looking a token up is no work, so only the head is active.
      EXPECT_NEAR(active, model.active_params_b - model.embedding_params_b() + table,
                  0.002 * model.active_params_b);
    }
  }
}

TEST(PipelineStagesTest, CachesLieOnTheStageOfTheirLayer) {
  const auto caches = LayerCaches(Model("llama-3.1-8b"),
                                  {.pipeline_parallel = 3, .num_draft_layers = 1});
  ASSERT_TRUE(caches.ok()) << caches.status();
  ASSERT_EQ(caches->size(), 33);
  EXPECT_EQ((*caches)[10].worker, 0);
  EXPECT_EQ((*caches)[11].worker, 1);
  EXPECT_EQ((*caches)[22].worker, 2);
  EXPECT_EQ((*caches)[32].worker, 2);  // the draft layer
  EXPECT_THAT(LayerCaches(Model("llama-3.1-8b"), {.pipeline_parallel = 33}).status().message(),
              HasSubstr("pipeline_parallel: got 33, expected 1 to 32"));
  EXPECT_THAT(LayerCaches(Model("deepseek-v4.1"), {.pipeline_parallel = 2}).status().message(),
              HasSubstr("read what another layer stores"));
}

}  // namespace
}  // namespace kvblocks
