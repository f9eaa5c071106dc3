// Decode context parallelism over two ranks, in one process: the tokens of a request are spread
// over two caches, each rank attends to its own, and merging their states gives undivided
// attention.
//
// On GPUs each rank is a process: `q` is gathered before the layer and `outs` and `lses` after it.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kvblocks/attention.h"
#include "kvblocks/kv_cache.h"

using namespace kvblocks;
using namespace kvblocks::attention;

constexpr int32_t kRanks = 2;
constexpr int64_t kBlockSize = 4, kNumBlocks = 8, kHeads = 2, kDim = 8;

struct Rank {
  std::vector<float> k = std::vector<float>(kNumBlocks * kBlockSize * kDim), v = k;
  AttentionMetadataBuilder builder;

  KvCacheView cache() {
    return {KvLayout::kNhd, ViewOf(absl::MakeSpan(k), {kNumBlocks, kBlockSize, 1, kDim}),
            ViewOf(absl::MakeSpan(v), {kNumBlocks, kBlockSize, 1, kDim})};
  }
};

bool Ok(const absl::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok();
}

int main() {
  // A block id of the manager now stands for a block of 4 tokens on each rank.
  const auto spec =
      FullAttentionSpec::Create({.block_size = kBlockSize, .num_kv_heads = 1, .head_size = kDim});
  auto manager = KvCacheManager::Create({.num_blocks = kNumBlocks, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 64, .decode_context_parallel = kRanks});
  if (!Ok(manager.status())) return 1;
  std::vector<Rank> ranks;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    auto builder = CpuBackend().MakeMetadataBuilder(
        {.groups = {{.manager_block_size = (*manager)->group(0).block_size(),
                     .kernel_block_size = kBlockSize,
                     .num_blocks = kNumBlocks,
                     .context_parallel = {kRanks, rank, /*interleave=*/1}}},
         .max_num_reqs = 1,
         .max_num_tokens = 32,
         .max_seq_len = 64});
    if (!Ok(builder.status())) return 1;
    ranks.push_back({.builder = *std::move(builder)});
  }
  const auto layer = CpuBackend().MakeImpl(
      {.name = "layer", .num_heads = kHeads, .num_kv_heads = 1, .head_size = kDim});

  // The engine's row of tokens: id t * t at position t.
  std::vector<int32_t> token_row(64);
  for (int32_t t = 0; t < 64; ++t) token_row[t] = t * t;
  auto request = (*manager)->NewRequest(
      {.id = "request", .content = {.token_ids = {token_row.begin(), token_row.begin() + 13}}});
  if (!Ok(layer.status()) || !Ok(request.status())) return 1;

  for (int64_t computed = 0, tokens = 13; computed < 16; computed += tokens, tokens = 1) {
    if (computed > 0 && !Ok((*request)->AppendOutputTokens({&token_row[computed], 1}))) return 1;
    if (!(*manager)->AllocateSlots(**request, {.num_new_tokens = tokens}).value()) return 1;
    const RequestInput input = {.num_computed_tokens = computed, .num_scheduled_tokens = tokens};
    const absl::Span<const int32_t> table = (*manager)->GetBlocks(**request, /*group=*/0);
    for (Rank& rank : ranks) {
      if (!Ok(rank.builder.Build({.requests = {&input, 1}, .block_ids = {&table, 1}}))) return 1;
    }

    // What the model is fed. Its keys are 0, so that all tokens weigh alike; values are the ids.
    const CommonAttentionMetadata& batch = ranks[0].builder.metadata();
    const std::vector<int32_t> row = {0}, done = {static_cast<int32_t>(computed)};
    std::vector<int32_t> ids(tokens);
    InputTokensArgs gather;
    gather.query_start_loc = batch.query_start_loc;
    gather.request_rows = ViewOf(absl::MakeConstSpan(row));
    gather.num_computed = ViewOf(absl::MakeConstSpan(done));
    gather.token_ids = ViewOf(absl::MakeConstSpan(token_row), {1, 64});
    gather.input_ids = ViewOf(absl::MakeSpan(ids));
    if (!Ok(GatherInputTokens(gather))) return 1;
    const std::vector<float> q(tokens * kHeads * kDim, 1), k(tokens * kDim);
    std::vector<float> v(tokens * kDim);
    for (int64_t i = 0; i < tokens * kDim; ++i) v[i] = static_cast<float>(ids[i / kDim]);

    // A state of each rank's context, and one of the step's own keys.
    std::vector<float> outs((kRanks + 1) * q.size()), lses((kRanks + 1) * tokens * kHeads);
    const TensorView all_outs = ViewOf(absl::MakeSpan(outs), {kRanks + 1, tokens, kHeads, kDim});
    const TensorView all_lses = ViewOf(absl::MakeSpan(lses), {kRanks + 1, tokens, kHeads});
    int stored[kRanks] = {};
    for (int32_t state = 0; state <= kRanks; ++state) {
      const bool own_keys = state == kRanks;
      Rank& rank = ranks[own_keys ? 0 : state];
      const CommonAttentionMetadata& metadata = rank.builder.metadata();
      LayerTensors tensors;
      tensors.q = ViewOf(absl::MakeConstSpan(q), {tokens, kHeads, kDim});
      tensors.k = ViewOf(absl::MakeConstSpan(k), {tokens, 1, kDim});
      tensors.v = ViewOf(absl::MakeConstSpan(v), {tokens, 1, kDim});
      if (!own_keys) tensors.cache = rank.cache();
      tensors.out = *all_outs.Select(0, state);
      tensors.lse = *all_lses.Select(0, state);
      if (!Ok((*layer)->Forward({}, tensors, &metadata))) return 1;
      for (int64_t t = 0; t < tokens && !own_keys; ++t) {
        stored[state] += metadata.slot_mapping.as<int64_t>()[t] >= 0;
      }
    }
    std::vector<float> out(q.size());
    MergeStatesArgs merge;
    merge.outs = all_outs, merge.lses = all_lses;
    merge.out = ViewOf(absl::MakeSpan(out), {tokens, kHeads, kDim});
    if (!Ok(Cpu().MergeStates({}, merge))) return 1;
    (*request)->set_num_computed_tokens(computed + tokens);

    // The mean of the squares up to the last token.
    const double last = static_cast<double>(computed + tokens - 1);
    const double mean = last * (2 * last + 1) / 6;
    const bool same = std::abs(out[(tokens - 1) * kHeads * kDim] - mean) < 1e-3;
    std::printf("%2d tokens, stored on the ranks: %d and %d; the last sees the mean %.2f: %s\n",
                int(tokens), stored[0], stored[1], mean, same ? "yes" : "no");
    if (!same) return 1;
  }
}
