// The engine's tokens and logits are those of the reference, however requests are batched, cut,
// cached, preempted and laid out. The models are tiny and random; tools/engine_models.py makes them
// and their answers.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/engine_fixture.h"
#include "gtest/gtest.h"

namespace kvblocks::engine {
namespace {

using attention::KvLayout;

TEST_P(EngineTest, OneRequestAtATime) {
  Settings settings;
  settings.caching = false;
  settings.concurrency = 1;
  const Outcome outcome = ExpectGolden(settings);
  EXPECT_EQ(outcome.served.result.prefix_cache.hits, 0);
  EXPECT_EQ(outcome.served.result.scheduler.num_steps, kRequests * kOutputs);
}

TEST_P(EngineTest, BatchedWithPrefixHits) {
  const Outcome outcome = ExpectGolden({});
  EXPECT_GT(outcome.served.result.prefix_cache.hits, 500);
  EXPECT_LT(outcome.served.result.scheduler.num_steps, kRequests);
}

TEST_P(EngineTest, Asynchronous) {
  Settings settings;
  settings.scheduler.async = true;
  ExpectGolden(settings);
}

TEST_P(EngineTest, PromptsInChunks) {
  for (const int64_t chunk : {7, 64}) {
    SCOPED_TRACE(chunk);
    Settings settings;
    settings.scheduler.max_num_batched_tokens = chunk;
    settings.scheduler.max_num_seqs = std::min<int64_t>(chunk, 32);
    ExpectGolden(settings);
    settings.scheduler.max_num_batched_tokens = 512;
    settings.scheduler.long_prefill_token_threshold = chunk;
    ExpectGolden(settings);
  }
}

TEST_P(EngineTest, PreemptedAndResumed) {
  Settings settings;
  settings.caches.block_size = 4;
  // Enough for the longest request, but not for two of them.
  const bool has_windows = model_.config().facts.has(LayerKind::kSliding);
  settings.plan.num_blocks_override = has_windows ? 84 : 60;
  const Outcome outcome = ExpectGolden(settings);
  EXPECT_GT(outcome.served.result.scheduler.num_preemptions, 0);
  EXPECT_GT(outcome.served.result.scheduler.num_recomputed, 0);
  EXPECT_GT(outcome.served.result.prefix_cache.hits, 100);
}

// Random models repeat themselves soon, so that drafts of n-grams are accepted.
TEST_P(EngineTest, DraftsChangeNoToken) {
  Settings settings;
  settings.num_drafts = 3;
  ExpectGolden(settings);
  settings.max_model_len = 256;
  const Served drafted = TryServe(model_, settings, TraceOf(golden_, 64)).value();
  settings.num_drafts = 0;
  const Served plain = TryServe(model_, settings, TraceOf(golden_, 64)).value();
  int64_t num_accepted = 0;
  for (size_t r = 0; r < plain.requests.size(); ++r) {
    EXPECT_EQ(drafted.requests[r].output_ids, plain.requests[r].output_ids) << r;
    for (const uint32_t accepted : drafted.requests[r].accepted_drafts) num_accepted += accepted;
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_GT(drafted.result.scheduler.num_rejected_drafts, 100);
}

// Blocks that the small pool has evicted come back from host memory.
TEST_P(EngineTest, LoadedFromATierBehindThePool) {
  for (const sim::LoadMode mode :
       {sim::LoadMode::kAsync, sim::LoadMode::kSync, sim::LoadMode::kLayerwise}) {
    for (const bool async : {false, true}) {
      Settings settings;
      settings.caches.block_size = 4;
      settings.plan.num_blocks_override = 120;
      settings.scheduler.async = async;
      settings.tiers = "host:2000chunks:read=1GB/s:chunk=2";
      settings.load_mode = mode;
      const Outcome outcome = ExpectGolden(settings);
      EXPECT_GT(outcome.served.result.scheduler.num_external, 100);
    }
  }
}

TEST_P(EngineTest, EveryLayout) {
  const bool is_latent = model_.config().facts.latent.has_value();
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    for (const KvLayout kv_layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      if (is_latent && kv_layout == KvLayout::kHnd) continue;  // rows have no heads
      for (const int64_t kernel_blocks : {1, 2}) {
        // Pages of an indexer and its layer are of two sizes, and their halves have other numbers.
        if (model_.config().facts.indexer && layout == PoolLayout::kNative && kernel_blocks > 1) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat(std::string(LayoutName(layout)), ", ", attention::Name(kv_layout),
                                  ", ", kernel_blocks));
        Settings settings;
        settings.plan.layout = layout;
        settings.runner.kv_layout = kv_layout;
        settings.runner.kernel_blocks = kernel_blocks;
        ExpectGolden(settings);
      }
    }
  }
  Settings settings;
  settings.plan.policy = PlanPolicy::kUpstream;
  ExpectGolden(settings);
  settings.plan.hybrid = false;
  ExpectGolden(settings);
}

// Rows of fewer bits: logits behind the prompts, whose tokens are the same, are near the
// reference's. Those of a wrong cache would be as far from it as another prompt's, 1.4 times their
// size. Where a router or an indexer chooses, a few tokens get other experts or rows, and are far
// off.
TEST_P(EngineTest, QuantisedCachesWithinTheirBounds) {
  const ModelFacts& facts = model_.config().facts;
  const bool is_latent = facts.latent.has_value(), chooses = facts.experts.has_value();
  struct {
    const char* dtype;
    double bound;
  } const formats[] = {{"bfloat16", chooses ? 0.1 : 0.01},
                       {"fp8", chooses ? 0.35 : 0.15},
                       {"fp8_per_token_head", chooses ? 0.35 : 0.15}};
  for (const auto& format : formats) {
    if (is_latent && std::string(format.dtype) == "fp8_per_token_head") continue;
    // Of V3.2 it is DeepSeek's own format, for rows of 576 values.
    if (facts.indexer && std::string(format.dtype) == "fp8") continue;
    SCOPED_TRACE(format.dtype);
    Settings settings;
    settings.caches.cache_dtype = format.dtype;
    const Outcome outcome = Run(settings);
    RecordProperty(format.dtype, absl::StrCat(outcome.rms_error));
    EXPECT_LT(outcome.rms_error, format.bound);
    EXPECT_GT(outcome.max_error, kTolerance);  // else it stored something else
  }
  if (!facts.indexer) return;
  // Index keys of 8 bits choose other rows, though not just any: those would be 1.2 off.
  Settings settings;
  settings.quantised_index = true;
  const Outcome outcome = Run(settings);
  RecordProperty("index_rows", absl::StrCat(outcome.rms_error));
  EXPECT_LT(outcome.rms_error, 0.6);
  EXPECT_GT(outcome.max_error, kTolerance);
}

// What a request answered is found by one that continues it.
TEST_P(EngineTest, OutputsAreHit) {
  Hits hits;
  sim::TraceInfo info;
  info.block_tokens = 1;
  std::vector<sim::TraceRequest> requests(2);
  for (int64_t r = 0; r < 2; ++r) {
    requests[static_cast<size_t>(r)].row = r;
    requests[static_cast<size_t>(r)].content_ids = golden_.prompts[0];
    requests[static_cast<size_t>(r)].output_length = kOutputs;
  }
  requests[1].waits_for = {0};
  for (const uint32_t token : golden_.tokens[0]) requests[1].content_ids.push_back(token);
  for (sim::TraceRequest& request : requests) {
    request.input_length = static_cast<int64_t>(request.content_ids.size());
  }
  Settings settings;
  settings.caches.block_size = 4;
  settings.engine = "vllm-0.25";  // which keeps windows for reuse not at the end of prompts alone
  const auto served =
      TryServe(model_, settings, std::make_unique<sim::VectorTraceReader>(info, requests), {&hits});
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->requests[0].output_ids, golden_.tokens[0]);
  // All but the last token, in blocks of 4.
  EXPECT_EQ(hits.tokens[1], (requests[1].input_length - 1) / 4 * 4);
}

TEST_P(EngineTest, SamplesBySeed) {
  const auto sample = [&](float temperature, uint64_t seed) {
    Settings settings;
    settings.runner.temperature = temperature;
    settings.runner.seed = seed;
    std::vector<std::vector<uint32_t>> tokens;
    const Served served = TryServe(model_, settings, TraceOf(golden_)).value();
    for (const sim::TraceRequest& request : served.requests) {
      tokens.push_back(request.output_ids);
    }
    return tokens;
  };
  EXPECT_EQ(sample(1e-4f, 1), golden_.tokens);
  EXPECT_EQ(sample(1, 1), sample(1, 1));
  EXPECT_NE(sample(1, 1), sample(1, 2));
}

TEST_P(EngineTest, RefusesTokensThatTheModelLacks) {
  Golden golden = golden_;
  golden.prompts[3].back() = model_.config().facts.vocab_size;
  const auto served = TryServe(model_, {}, TraceOf(golden));
  EXPECT_EQ(served.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(served.status().message().find("request 3: got token"), std::string::npos)
      << served.status();
}

// Models that differ from the others in little.
using SmallModelTest = EngineTest;

TEST_P(SmallModelTest, AnswersAsTheReference) {
  Settings settings;
  settings.concurrency = 1;
  settings.caching = false;
  ExpectGolden(settings);
  settings = {};
  settings.caches.block_size = 4;
  const Outcome outcome = ExpectGolden(settings);
  // Blocks of 256 tokens are longer than prompts.
  if (!model_.config().facts.compressed) {
    EXPECT_GT(outcome.served.result.prefix_cache.hits, 50);
  }
  settings.scheduler.max_num_batched_tokens = 7;
  settings.scheduler.max_num_seqs = 7;
  settings.num_drafts = 3;
  ExpectGolden(settings);
}

INSTANTIATE_TEST_SUITE_P(Models, SmallModelTest,
                         ::testing::Values("mistral", "qwen2", "qwen3_moe", "deepseek_v4"),
                         [](const auto& param) { return std::string(param.param); });

INSTANTIATE_TEST_SUITE_P(Models, EngineTest,
                         ::testing::Values("llama", "qwen3", "gemma3", "gemma2", "gpt_oss",
                                           "deepseek_v2_lite", "deepseek_v3", "deepseek_v32"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace kvblocks::engine
