// A prompt and three generated tokens through block tables: the manager gives out blocks, the layer
// of a backend stores keys and values in them (ReshapeAndCache) and attends (PagedPrefill, then
// PagedDecode), and plain attention over all tokens checks each step.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kvblocks/attention.h"
#include "kvblocks/kv_cache.h"

using namespace kvblocks;
using namespace kvblocks::attention;

constexpr int64_t kBlockSize = 16, kNumBlocks = 64, kHeads = 4, kKvHeads = 2, kDim = 32;

// Stands for a projection of the model: some number per token, head and dimension.
std::vector<float> Project(int64_t first_token, int64_t tokens, int64_t heads, float seed) {
  std::vector<float> rows(tokens * heads * kDim);
  for (int64_t i = 0; i < tokens * heads * kDim; ++i) {
    rows[i] = std::sin(seed * (first_token * heads * kDim + i));
  }
  return rows;
}

// How far the last query row of a request of `length` tokens is from attention written plainly.
double Difference(const float* out, int64_t length) {
  const auto q = Project(length - 1, 1, kHeads, 1.1f), k = Project(0, length, kKvHeads, 0.7f),
             v = Project(0, length, kKvHeads, 0.3f);
  double worst = 0;
  for (int64_t head = 0; head < kHeads; ++head) {
    double sum[kDim] = {}, total = 0;
    for (int64_t j = 0; j < length; ++j) {
      const int64_t row = (j * kKvHeads + head / (kHeads / kKvHeads)) * kDim;
      double score = 0;
      for (int64_t d = 0; d < kDim; ++d) score += q[head * kDim + d] * k[row + d];
      const double weight = std::exp(score / std::sqrt(kDim));
      total += weight;
      for (int64_t d = 0; d < kDim; ++d) sum[d] += weight * v[row + d];
    }
    for (int64_t d = 0; d < kDim; ++d) {
      worst = std::max(worst, std::abs(sum[d] / total - out[head * kDim + d]));
    }
  }
  return worst;
}

int main() {
  const auto spec = FullAttentionSpec::Create(
      {.block_size = kBlockSize, .num_kv_heads = kKvHeads, .head_size = kDim});
  auto manager = KvCacheManager::Create({.num_blocks = kNumBlocks, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 512});
  const std::vector<TokenId> prompt(100, /*token=*/7);
  auto request = (*manager)->NewRequest({.id = "request", .content = {.token_ids = prompt}});

  const auto backend =
      SelectBackend(DefaultBackendRegistry(),
                    {.q_dtype = DType::kF32, .cache_dtype = DType::kF32, .head_size = kDim});
  if (!backend.ok()) return 1;
  const auto layer =
      (*backend)->MakeImpl({.num_heads = kHeads, .num_kv_heads = kKvHeads, .head_size = kDim});
  auto builder = (*backend)->MakeMetadataBuilder({.groups = {{.num_blocks = kNumBlocks}},
                                                  .max_num_reqs = 1,
                                                  .max_num_tokens = 128,
                                                  .max_seq_len = 512});
  if (!request.ok() || !layer.ok() || !builder.ok()) return 1;
  std::vector<float> k_cache(kNumBlocks * kBlockSize * kKvHeads * kDim), v_cache(k_cache);
  const KvCacheView cache = {
      KvLayout::kNhd, ViewOf(absl::MakeSpan(k_cache), {kNumBlocks, kBlockSize, kKvHeads, kDim}),
      ViewOf(absl::MakeSpan(v_cache), {kNumBlocks, kBlockSize, kKvHeads, kDim})};

  for (int64_t computed = 0, tokens = 100; computed < 103; computed += tokens, tokens = 1) {
    const TokenId sampled = 7;
    if (computed > 0 && !(*request)->AppendOutputTokens({&sampled, 1}).ok()) return 1;
    auto slots = (*manager)->AllocateSlots(**request, {.num_new_tokens = tokens});
    if (!slots.ok() || !slots->has_value()) return 1;
    const RequestInput input = {.num_computed_tokens = computed, .num_scheduled_tokens = tokens};
    const absl::Span<const int32_t> table = (*manager)->GetBlocks(**request, /*group=*/0);
    if (!builder->Build({.requests = {&input, 1}, .block_ids = {&table, 1}}).ok()) return 1;

    auto q = Project(computed, tokens, kHeads, 1.1f), k = Project(computed, tokens, kKvHeads, 0.7f),
         v = Project(computed, tokens, kKvHeads, 0.3f), out = std::vector<float>(q.size());
    const absl::Status status =
        (*layer)->Forward({},
                          {.q = ViewOf(absl::MakeSpan(q), {tokens, kHeads, kDim}),
                           .k = ViewOf(absl::MakeSpan(k), {tokens, kKvHeads, kDim}),
                           .v = ViewOf(absl::MakeSpan(v), {tokens, kKvHeads, kDim}),
                           .cache = cache,
                           .out = ViewOf(absl::MakeSpan(out), {tokens, kHeads, kDim})},
                          &builder->metadata());
    (*request)->set_num_computed_tokens(computed + tokens);
    const double off = Difference(&out[(tokens - 1) * kHeads * kDim], computed + tokens);
    const bool same = status.ok() && off < 1e-5;
    std::printf("%3d tokens: %s\n", int(tokens), same ? "as plain attention" : "not the same");
    if (!same) return 1;
  }
}
