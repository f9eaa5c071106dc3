// CacheBlend over the blocks of a manager, by the operations under test: what they leave in them
// is what CPU_REFERENCE does. It is no full prefill's, so no other request may hit it, now or after
// the request's decodes.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/ops_suite.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/cache_blend.h"
#include "kvblocks/kv_cache_manager.h"

namespace kvblocks {
namespace {

using attention::BlendSession;
using attention::ViewOf;

constexpr int64_t kBlockSize = 4, kNumBlocks = 32, kLongest = 64, kSystemTokens = 8;

std::vector<int32_t> Ids(int64_t count, int32_t salt) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (size_t t = 0; t < ids.size(); ++t) {
    ids[t] = static_cast<int32_t>(1 + (t * 37 + static_cast<size_t>(salt) * 11) % 120);
  }
  return ids;
}

class BlendCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto& model = transformer_.config();
    const auto spec = FullAttentionSpec::Create({.block_size = kBlockSize,
                                                 .num_kv_heads = model.num_kv_heads,
                                                 .head_size = model.head_dim});
    manager_ = *KvCacheManager::Create({.num_blocks = kNumBlocks, .groups = {{.spec = *spec}}},
                                       {.max_model_len = kLongest});
    builder_.emplace(
        *attention::AttentionMetadataBuilder::Create({.groups = {{.manager_block_size = kBlockSize,
                                                                  .kernel_block_size = kBlockSize,
                                                                  .num_blocks = kNumBlocks}},
                                                      .max_num_reqs = 1,
                                                      .max_num_tokens = kLongest,
                                                      .max_seq_len = kLongest}));
    const int64_t block = kBlockSize * model.num_kv_heads * model.head_dim;
    for (Caches* caches : {&caches_, &expected_}) {
      caches->memory.resize(static_cast<size_t>(2 * model.num_layers * kNumBlocks * block));
      for (int half = 0; half < 2 * model.num_layers; half += 2) {
        const auto view = [&](int which) {
          return ViewOf(absl::MakeSpan(caches->memory)
                            .subspan(static_cast<size_t>((half + which) * kNumBlocks * block),
                                     static_cast<size_t>(kNumBlocks * block)),
                        {kNumBlocks, kBlockSize, model.num_kv_heads, model.head_dim});
        };
        caches->layers.push_back(
            {attention::KvCacheView(attention::KvLayout::kNhd, view(0), view(1))});
      }
    }
  }

  std::unique_ptr<Request> New(const std::vector<int32_t>& ids, bool skip_writing = false) {
    return *manager_->NewRequest(
        {.id = "r", .content = {.token_ids = ids}, .skip_writing_prefix_cache = skip_writing});
  }
  int64_t NumHit(const std::vector<int32_t>& ids) {
    return manager_->GetComputedBlocks(*New(ids))->num_tokens();
  }
  // Makes slots for all tokens that are not computed, and computes them.
  absl::Status Step(Request& request, const std::vector<int32_t>& ids,
                    const BlendSession* session = nullptr) {
    ComputedBlocks hits;
    if (!manager_->HoldsBlocks(request)) {
      hits = *manager_->GetComputedBlocks(request);
      request.set_num_computed_tokens(0);
    }
    const int64_t computed = request.num_computed_tokens() + hits.num_tokens();
    const int64_t tokens = static_cast<int64_t>(ids.size()) - computed;
    const auto slots = manager_->AllocateSlots(
        request, {.num_new_tokens = tokens,
                  .computed_blocks = manager_->HoldsBlocks(request) ? nullptr : &hits});
    if (!slots.ok()) return slots.status();
    const attention::RequestInput input = {.num_computed_tokens = computed,
                                           .num_scheduled_tokens = tokens};
    const absl::Span<const int32_t> blocks = manager_->GetBlocks(request, 0);
    absl::Status status = builder_->Build({.requests = {&input, 1}, .block_ids = {&blocks, 1}});
    if (!status.ok()) return status;
    const std::vector<float> hidden =
        transformer_.Embed(absl::MakeConstSpan(ids).subspan(static_cast<size_t>(computed)));
    const int64_t registered = manager_->GetNumRegisteredTokens(request, 0);
    attention::BlendStep step;
    step.metadata = &builder_->metadata();
    step.sessions = {&session, 1};
    step.num_registered_tokens = {&registered, 1};
    step.hidden = ViewOf(absl::MakeConstSpan(hidden), {tokens, transformer_.config().hidden_size});
    const auto run = [&](const attention::AttentionOps& ops, Caches& caches) {
      step.layers = caches.layers;
      return RunBlend(ops, context_, transformer_.blend_config(), step,
                      transformer_.Model(ops, context_));
    };
    const auto blended = run(attention::OpsUnderTest(), caches_);
    if (!blended.ok()) return blended.status();
    const auto expected = run(attention::CpuReference(), expected_);
    if (!expected.ok()) return expected.status();
    ExpectNear(attention::ValuesOf(blended->hidden), attention::ValuesOf(expected->hidden));
    ExpectNear({caches_.memory.begin(), caches_.memory.end()},
               {expected_.memory.begin(), expected_.memory.end()});
    request.set_num_computed_tokens(computed + tokens);
    return absl::OkStatus();
  }
  static void ExpectNear(const std::vector<double>& got, const std::vector<double>& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-4) << i;
  }

  const attention::SmallTransformer transformer_{
      attention::SmallTransformerConfig{.num_layers = 2}};
  attention::ExecContext context_;
  std::unique_ptr<KvCacheManager> manager_;
  std::optional<attention::AttentionMetadataBuilder> builder_;
  struct Caches {
    std::vector<float> memory;
    std::vector<attention::BlendLayer> layers;
  };
  Caches caches_, expected_;
};

TEST_F(BlendCacheTest, OtherRequestsHitNothingThatABlendWrote) {
  const std::vector<int32_t> system = Ids(kSystemTokens, 1), ids = Ids(9, 2), question = Ids(3, 3);
  const auto first = New(system);
  ASSERT_EQ(Step(*first, system), absl::OkStatus());
  std::vector<int32_t> prompt = system;
  prompt.insert(prompt.end(), ids.begin(), ids.end());
  prompt.insert(prompt.end(), question.begin(), question.end());
  ASSERT_EQ(NumHit(prompt), kSystemTokens);

  auto session = BlendSession::Create(transformer_.blend_config(), kSystemTokens);
  const auto chunk = transformer_.Prefill(attention::CpuReference(), context_, ids);
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  attention::BlendChunk beginning;
  beginning.ids = system;
  ASSERT_EQ(session->AddChunk(beginning), absl::OkStatus());
  ASSERT_EQ(session->AddChunk(ViewsOf(*chunk, transformer_.config(), 0).chunk), absl::OkStatus());
  ASSERT_EQ(session->Plan(question, prompt), absl::OkStatus());

  // A request like any other has registered its full blocks by then.
  const auto careless = New(prompt);
  EXPECT_EQ(
      Step(*careless, prompt, &*session),
      absl::FailedPreconditionError(
          "RunBlend: request 0 of the metadata has 20 tokens in the prefix cache, of which session "
          "0 writes those behind the first 8; other requests would hit them: evict its blocks and "
          "make the request with skip_writing_prefix_cache"));
  // Nothing of it was computed.
  const auto blocks = manager_->GetBlocks(*careless, 0);
  ASSERT_EQ(manager_->EvictBlocks(std::vector<BlockId>(blocks.begin() + 2, blocks.end())),
            absl::OkStatus());
  ASSERT_EQ(manager_->Free(*careless), absl::OkStatus());
  ASSERT_EQ(NumHit(prompt), kSystemTokens);

  const auto request = New(prompt, /*skip_writing=*/true);
  ASSERT_EQ(Step(*request, prompt, &*session), absl::OkStatus());
  for (int32_t token = 1; token <= 10; ++token) {
    prompt.push_back(token);
    ASSERT_EQ(request->AppendOutputTokens({&token, 1}), absl::OkStatus());
    ASSERT_EQ(Step(*request, prompt), absl::OkStatus());
  }
  EXPECT_EQ(NumHit(prompt), kSystemTokens);
  ASSERT_EQ(manager_->Free(*request), absl::OkStatus());
  EXPECT_EQ(NumHit(prompt), kSystemTokens);
  EXPECT_EQ(manager_->CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace kvblocks
