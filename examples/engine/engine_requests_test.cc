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
  std::vector<sim::TraceRequest> requests;
  RequestAttentions asks;
  const auto add = [&](std::vector<int64_t> ids, int64_t num_outputs) -> sim::TraceRequest& {
    sim::TraceRequest& request = requests.emplace_back();
    request.row = static_cast<int64_t>(requests.size()) - 1;
    request.id = absl::StrCat(request.row);
    request.input_length = static_cast<int64_t>(ids.size());
    request.output_length = num_outputs;
    request.content_ids = std::move(ids);
    return request;
  };
  std::map<int64_t, size_t> prompt_of;  // by row
  for (size_t r = 0; r < golden_.prompts.size(); ++r) {
    const std::vector<int64_t>& prompt = golden_.prompts[r];
    if (prompt.size() < 40) continue;
    const int64_t length = static_cast<int64_t>(prompt.size()) / 3;
    std::vector<int64_t> chunks;
    for (int64_t c = 0; c < 2; ++c) {
      const auto begin = prompt.begin() + c * length;
      chunks.push_back(add({begin, begin + length}, 1).row);
      asks[requests.back().id].keep = true;
    }
    sim::TraceRequest& whole = add(prompt, kOutputs);
    whole.waits_for = chunks;
    asks[whole.id].chunks = {length, length};
    prompt_of[whole.row] = r;
  }
  ASSERT_GT(prompt_of.size(), 30);
  struct Measured {
    double max_error = 0, rms_error = 0;
    int64_t num_wrong_tokens = 0, num_recomputed = 0, num_preemptions = 0;
  };
  const auto serve = [&](double ratio, Settings settings) {
    Measured measured;
    double squares = 0, error_squares = 0;
    settings.runner.requests = asks;
    settings.runner.blend_ratio = ratio;
    settings.runner.on_blend = [&](absl::Span<const attention::BlendLayerReport> layers) {
      measured.num_recomputed += layers.back().recomputed_rows;
    };
    settings.runner.on_logits = [&](const sim::SimRequest& request, int64_t index,
                                    absl::Span<const float> logits) {
      const auto found = prompt_of.find(request.spec.row);
      if (found == prompt_of.end() || index != 0) return;
      for (size_t i = 0; i < logits.size(); ++i) {
        const double error =
            std::abs(logits[i] - golden_.first_logits[found->second * logits.size() + i]);
        measured.max_error = std::max(measured.max_error, error);
        squares += double{logits[i]} * logits[i], error_squares += error * error;
      }
    };
    sim::TraceInfo info;
    info.block_tokens = 1;
    const auto served =
        TryServe(model_, settings, std::make_unique<sim::VectorTraceReader>(info, requests));
    EXPECT_TRUE(served.ok()) << served.status();
    if (!served.ok()) return measured;
    for (const auto& [row, r] : prompt_of) {
      const auto& output = served->requests[static_cast<size_t>(row)].output_ids;
      for (size_t i = 0; i < golden_.tokens[r].size(); ++i) {
        measured.num_wrong_tokens += output[i] != golden_.tokens[r][i];
      }
    }
    measured.rms_error = std::sqrt(error_squares / squares);
    measured.num_preemptions = served->result.scheduler.num_preemptions;
    return measured;
  };
  const auto expect_golden = [&](const Settings& settings) {
    const Measured all = serve(1, settings);
    EXPECT_EQ(all.num_wrong_tokens, 0);
    EXPECT_LT(all.max_error, kTolerance);
    EXPECT_GT(all.num_recomputed, 200);
    return all;
  };
  Settings settings;
  settings.caches.block_size = 4;
  expect_golden(settings);
  settings.num_drafts = 3;
  expect_golden(settings);
  settings.num_drafts = 0;
  settings.plan.num_blocks_override = 60;
  EXPECT_GT(expect_golden(settings).num_preemptions, 0);
  settings.tiers = "host:2000chunks:read=1GB/s:chunk=2";
  expect_golden(settings);
  settings = {};
  settings.scheduler.max_num_batched_tokens = 64;  // cuts prompts: what is left of them is blended
  expect_golden(settings);

  // The fewer are computed again, the farther logits are from the full prefill's.
  settings = {};
  int64_t num_recomputed = -1;
  for (const auto& [ratio, bound] :
       {std::pair(0.0, 0.25), {0.16, 0.16}, {0.5, 0.02}, {0.8, 0.005}}) {
    const Measured some = serve(ratio, settings);
    RecordProperty(absl::StrCat("ratio_", ratio), absl::StrCat(some.rms_error));
    EXPECT_LT(some.rms_error, bound) << ratio;
    EXPECT_GT(some.max_error, kTolerance) << ratio;
    EXPECT_GT(some.num_recomputed, num_recomputed);
    num_recomputed = some.num_recomputed;
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
