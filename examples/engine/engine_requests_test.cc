// What requests ask of attention: masks, whose answers are the reference's with the same masks, and
// blended chunks, whose answers are the full prefill's if all is computed again.

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/engine_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::engine {
namespace {

using ::testing::HasSubstr;

// The first prompts a second time, through masks, beside all without.
using MaskTest = EngineTest;

TEST_P(MaskTest, DocumentsAndFreeMasks) {
  const Golden golden = Golden::ReadMasked(Folder());
  Settings settings;
  settings.caching = false;
  ExpectGolden(settings, golden);
  settings.caching = true;
  settings.caches.block_size = 4;
  ExpectGolden(settings, golden);
  settings.plan.hybrid = false;
  ExpectGolden(settings, golden);
  settings.plan.hybrid = true;
  settings.num_drafts = 3;
  ExpectGolden(settings, golden);
  settings.num_drafts = 0;
  settings.scheduler.max_num_batched_tokens = 7;
  settings.scheduler.max_num_seqs = 7;
  ExpectGolden(settings, golden);
  settings.scheduler = Settings().scheduler;
  settings.plan.num_blocks_override = model_.config().facts.has(LayerKind::kSliding) ? 84 : 60;
  EXPECT_GT(ExpectGolden(settings, golden).served.result.scheduler.num_preemptions, 0);
}

TEST_P(MaskTest, HitsAreThoseOfTheSameMask) {
  Golden golden = Golden::ReadMasked(Folder());
  const auto size = static_cast<size_t>(model_.config().facts.vocab_size);
  for (int64_t r = kRequests; r < kRequests + kMasked; ++r) {
    const auto row = static_cast<size_t>(r);
    golden.attention[absl::StrCat(r + kMasked)] = golden.attention[absl::StrCat(r)];
    golden.prompts.push_back(golden.prompts[row]);
    golden.tokens.push_back(golden.tokens[row]);
    for (std::vector<float>* logits : {&golden.first_logits, &golden.last_logits}) {
      const std::vector<float> all = *logits;
      const auto own = all.begin() + static_cast<int64_t>(row * size);
      logits->insert(logits->end(), own, own + static_cast<int64_t>(size));
    }
  }
  Settings settings;
  settings.caches.block_size = 4;
  settings.concurrency = 1;
  Hits hits;
  ExpectGolden(settings, golden, {&hits});
  for (int64_t r = kRequests; r < kRequests + kMasked; ++r) {
    const auto length = static_cast<int64_t>(golden.prompts[static_cast<size_t>(r)].size());
    EXPECT_EQ(hits.tokens[r], 0) << r;
    EXPECT_EQ(hits.tokens[r + kMasked], (length - 1) / 4 * 4) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MaskTest,
                         ::testing::Values("llama", "gemma3", "gpt_oss", "deepseek_v2_lite"),
                         [](const auto& param) { return std::string(param.param); });

// Prompts of two chunks and a rest that are blended, once the chunks were answered on their own.
using BlendTest = EngineTest;

TEST_P(BlendTest, AllComputedAgainIsTheFullPrefill) {
  const Golden blended = golden_.Blended();
  ASSERT_GT(blended.num_requests(), 90);
  int64_t num_recomputed = 0;
  const auto serve = [&](double ratio, Settings settings) {
    num_recomputed = 0;
    settings.runner.blend_ratio = ratio;
    settings.runner.on_blend = [&](absl::Span<const attention::BlendLayerReport> layers) {
      num_recomputed += layers.back().recomputed_rows;
    };
    return Run(std::move(settings), blended);
  };
  const auto expect_golden = [&](const Settings& settings) {
    const Outcome all = serve(1, settings);
    EXPECT_EQ(all.num_wrong_tokens, 0);
    EXPECT_LT(all.max_error, kTolerance);
    EXPECT_GT(num_recomputed, 200);
    return all.served.result.scheduler.num_preemptions;
  };
  Settings settings;
  settings.caches.block_size = 4;
  expect_golden(settings);
  settings.num_drafts = 3;
  expect_golden(settings);
  settings.num_drafts = 0;
  settings.plan.num_blocks_override = 60;
  EXPECT_GT(expect_golden(settings), 0);
  settings.tiers = "host:2000chunks:read=1GB/s:chunk=2";
  expect_golden(settings);
  settings = {};
  settings.scheduler.max_num_batched_tokens = 64;  // cuts prompts: what is left of them is blended
  expect_golden(settings);

  // The fewer are computed again, the farther logits are from the full prefill's.
  settings = {};
  int64_t before = -1;
  for (const auto& [ratio, bound] :
       {std::pair(0.0, 0.25), {0.16, 0.16}, {0.5, 0.02}, {0.8, 0.005}}) {
    const Outcome some = serve(ratio, settings);
    RecordProperty(absl::StrCat("ratio_", ratio), absl::StrCat(some.rms_error));
    EXPECT_LT(some.rms_error, bound) << ratio;
    EXPECT_GT(some.max_error, kTolerance) << ratio;
    EXPECT_GT(num_recomputed, before);
    before = num_recomputed;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BlendTest, ::testing::Values("qwen3"),
                         [](const auto& param) { return std::string(param.param); });

using RefusalTest = EngineTest;

TEST_P(RefusalTest, WhatIsAskedOfAttentionMustFit) {
  const auto refusal = [&](const std::string& id, RequestAttention asks) {
    Settings settings;
    settings.runner.requests[id] = std::move(asks);
    return std::string(TryServe(model_, settings, TraceOf(golden_)).status().message());
  };
  const auto length = static_cast<int64_t>(golden_.prompts[5].size());
  EXPECT_EQ(refusal("5", {.documents = {length, 1}}),
            absl::StrCat("request 5: documents: got [", length,
                         ", 1], expected lengths of at least 1 that add up to at most ", length,
                         ", for a prompt of ", length, " tokens"));
  EXPECT_THAT(refusal("5", {.documents = {0}}), HasSubstr("documents: got [0], expected lengths"));
  EXPECT_THAT(refusal("5", {.documents = {INT64_MAX, INT64_MAX}}), HasSubstr("expected lengths"));
  EXPECT_THAT(refusal("5", {.chunks = {length}}), HasSubstr("add up to at most"));
  EXPECT_THAT(refusal("5", {.documents = {1}, .keep = true}), HasSubstr("expected one"));
  EXPECT_THAT(refusal("5", {.mask = {"1"}}), HasSubstr("mask: got 1 rows, expected one for each"));
  std::vector<std::string> mask(static_cast<size_t>(length), "1");
  EXPECT_THAT(refusal("5", {.mask = mask}), HasSubstr("got row 1 of 1 characters, expected 2"));
  EXPECT_THAT(refusal("none", {.documents = {1}}), HasSubstr("request none: something is asked"));
}

TEST_P(RefusalTest, ChunksAreOfModelsThatCanBeBlended) {
  for (const auto& [name, why] : {std::pair("llama", "stretched positions"),
                                  {"gemma3", "windows"},
                                  {"deepseek_v3", "latent rows"}}) {
    Settings settings;
    settings.runner.requests["0"].keep = true;
    const Model other = Model::Load(absl::StrCat("examples/engine/testdata/", name)).value();
    const auto served = TryServe(other, settings, TraceOf(golden_));
    EXPECT_EQ(served.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(served.status().message()), HasSubstr(why));
  }
}

TEST_P(RefusalTest, SparseLayersHaveNoMasks) {
  Settings settings;
  settings.runner.requests["0"].documents = {1};
  const Model sparse = Model::Load("examples/engine/testdata/deepseek_v32").value();
  const auto served = TryServe(sparse, settings, TraceOf(golden_));
  EXPECT_THAT(std::string(served.status().message()), HasSubstr("sparse MLA has none"));
}

INSTANTIATE_TEST_SUITE_P(Qwen3, RefusalTest, ::testing::Values("qwen3"));

}  // namespace
}  // namespace kvblocks::engine
