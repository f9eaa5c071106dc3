// Two requests that share a prompt, through the calls a scheduler makes.
#include <cstdio>
#include <numeric>

#include "kvblocks/kv_cache.h"

int main() {
  using namespace kvblocks;
  const auto spec =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  if (!spec.ok()) return 1;
  auto manager = KvCacheManager::Create({.num_blocks = 1000, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 8192});
  if (!manager.ok()) return 1;

  std::vector<TokenId> prompt(100);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (const char* id : {"first", "second"}) {
    auto request = (*manager)->NewRequest({.id = id, .content = {.token_ids = prompt}});
    if (!request.ok()) return 1;

    // What is cached already need not be computed.
    auto hits = (*manager)->GetComputedBlocks(**request);
    if (!hits.ok()) return 1;
    const int64_t num_new_tokens = (*request)->num_tokens() - hits->num_tokens();

    // An error is misuse; an empty answer means that it does not fit now.
    auto slots = (*manager)->AllocateSlots(
        **request, {.num_new_tokens = num_new_tokens, .computed_blocks = &*hits});
    if (!slots.ok() || !slots->has_value()) return 1;
    (*request)->set_num_computed_tokens((*request)->num_tokens());

    // The block table, contiguous int32: what an attention kernel reads.
    std::printf("%s: %lld tokens hit, %lld to compute, block table", id,
                static_cast<long long>(hits->num_tokens()),
                static_cast<long long>(num_new_tokens));
    for (BlockId block : (*manager)->GetBlocks(**request, /*group=*/0)) std::printf(" %d", block);
    std::printf("\n");
    if (!(*manager)->Free(**request).ok()) return 1;  // its full blocks stay cached
  }
}
