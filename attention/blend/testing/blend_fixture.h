// What tests of blending share: a small model, sessions of chunks prefilled alone, and runs of
// them. Testonly.

#ifndef KVBLOCKS_ATTENTION_BLEND_TESTING_BLEND_FIXTURE_H_
#define KVBLOCKS_ATTENTION_BLEND_TESTING_BLEND_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "attention/blend/testing/paged_model.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/cache_blend.h"

namespace kvblocks::attention {

inline std::vector<const AttentionOps*> BlendBackends() { return {&CpuReference(), &Cpu()}; }

inline constexpr int32_t kBos = 0;

inline std::vector<int32_t> Tokens(int64_t count, int32_t salt) {
  std::vector<int32_t> ids(count);
  for (int64_t t = 0; t < count; ++t) ids[t] = static_cast<int32_t>(1 + (t * 37 + salt * 11) % 120);
  return ids;
}

inline std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// By operations of the CPU.
class BlendFixture : public ::testing::TestWithParam<const AttentionOps*> {
 protected:
  SmallTransformerConfig Shape() const {
    return {.num_layers = 4, .hidden_size = 24, .head_dim = 6, .ffn_size = 32};
  }

  PrefilledPrompt Prefill(const std::vector<int32_t>& ids) {
    auto prompt = transformer.Prefill(ops, context, ids);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    return *std::move(prompt);
  }
  BlendConfig Config(std::vector<BlendCheck> checks) const {
    BlendConfig config = transformer.blend_config();
    config.check_layers = std::move(checks);
    return config;
  }
  BlendConfig Config(double ratio) const { return Config({{1, ratio}}); }
  // Of chunks prefilled alone, each behind a BOS.
  BlendSession Session(const BlendConfig& config, const std::vector<std::vector<int32_t>>& chunks,
                       const std::vector<int32_t>& tail, int64_t num_computed = 0) {
    auto session = BlendSession::Create(config, num_computed);
    EXPECT_TRUE(session.ok()) << session.status();
    for (const auto& chunk : chunks) {
      const PrefilledPrompt& prompt = prefilled.emplace_back(Prefill(Join({kBos}, chunk)));
      EXPECT_EQ(session->AddChunk(ViewsOf(prompt, transformer.config(), 1).chunk),
                absl::OkStatus());
    }
    EXPECT_EQ(session->Plan(tail), absl::OkStatus());
    return *std::move(session);
  }
  // A request of the session, whose first tokens are in the cache if it says so.
  StepRequest Request(PagedModel& paged, const BlendSession& session) {
    StepRequest request{.session = &session, .num_computed = session.num_computed_tokens()};
    request.blocks = paged.TakeBlocks(session.num_tokens());
    if (request.num_computed > 0) {
      const auto computed = session.token_ids().first(request.num_computed);
      Run(paged, {{.ids = {computed.begin(), computed.end()}, .blocks = request.blocks}});
    }
    return request;
  }
  BlendResult Run(PagedModel& paged, const std::vector<StepRequest>& requests) {
    auto result = paged.Run(ops, context, requests);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  BlendResult Run(const BlendSession& session) {
    PagedModel paged(transformer, {});
    return Run(paged, {Request(paged, session)});
  }
  // Row r of a result.
  std::vector<float> Row(const BlendResult& result, int64_t r) const {
    const int64_t width = transformer.config().hidden_size;
    const float* row = result.hidden.as<float>() + r * width;
    return {row, row + width};
  }
  std::vector<float> Row(const PrefilledPrompt& prompt, int64_t t) const {
    const int64_t width = transformer.config().hidden_size;
    return {prompt.hidden.begin() + t * width, prompt.hidden.begin() + (t + 1) * width};
  }

  const AttentionOps& ops = *GetParam();
  ExecContext context;
  SmallTransformer transformer{Shape()};
  std::deque<PrefilledPrompt> prefilled;  // sessions look into it
  const std::vector<int32_t> a = Tokens(9, 1), b = Tokens(7, 2), suffix = Tokens(3, 3);
  const std::vector<int32_t> prompt_ids = Join(Join(Join({kBos}, a), b), suffix);
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_TESTING_BLEND_FIXTURE_H_
